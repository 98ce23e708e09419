// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of handwritten digits on the host and on GPUs, and compares the two. The training loop is the same, in
// classifier.hpp: the model and where samples lie are all that differs.

#include "classifier.hpp"
#include "device_table.cuh"
#include "models/mlp.hpp"
#include "models/perceptron.cuh"

#include <lockstep/lockstep.cuh>
#if defined(LOCKSTEP_EXAMPLE_NCCL)
#include <lockstep/comm/nccl.cuh>
#endif

#include <cuda_runtime.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace examples {

#if defined(LOCKSTEP_EXAMPLE_NCCL)
inline constexpr bool with_nccl = true;
#else
inline constexpr bool with_nccl = false;
#endif

/// On GPUs: the training set lies on each of them, the test set in memory that all of them and the host see.
template <>
struct placement<lockstep::cuda> {
  static constexpr char const* where = "GPU";
  static constexpr std::size_t prefetch = 0;

  void meet(lockstep::device_context<lockstep::cuda> const& device) { devices.push_back(&device.device()); }
  device_table const& put(image_table const& all, std::size_t largest_batch) {
    return table.emplace(all, devices, largest_batch);
  }

  template <class Trainer>
  std::vector<float> predict(Trainer& trainer, image_table const& test, std::size_t classes) {
    std::size_t const rows = test.rows();
    auto const images = share(std::vector<float>(test.values<0>().begin(), test.values<0>().end()));
    auto const labels = share(std::vector<std::int32_t>(test.values<1>().begin(), test.values<1>().end()));
    auto const probabilities = share(std::vector<float>(rows * classes));
    device_table::shard const batch{{images.get(), rows, std::get<0>(test.view()).width()}, {labels.get(), rows, 1}};
    trainer.predict(batch, lockstep::sample_view<float>{probabilities.get(), rows, classes});
    return {probabilities.get(), probabilities.get() + rows * classes};
  }
  static std::vector<float> values(lockstep::parameter const& p) {
    std::vector<float> read(p.count());
    lockstep::check(cudaMemcpy(read.data(), p.value, read.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return read;
  }

  struct give_back {
    void operator()(void* memory) const noexcept { static_cast<void>(cudaFree(memory)); }
  };
  template <class T>
  static std::unique_ptr<T[], give_back> share(std::vector<T> const& values) {
    T* memory = nullptr;
    lockstep::check(cudaMallocManaged(&memory, values.size() * sizeof(T)));
    std::copy(values.begin(), values.end(), memory);
    return std::unique_ptr<T[], give_back>{memory};
  }

  std::vector<lockstep::cuda::device*> devices;
  std::optional<device_table> table;
};

}  // namespace examples

namespace {

constexpr char const* usage = R"(Usage: digits_cuda [OPTION VALUE]...

Trains a classifier of handwritten digits on the host and on GPUs, and compares the two.

  --data WHAT     digits, mnist, or a file of digits: rows of 64 pixel counts 0 to 16, then the label (digits)
  --policy NAME   all, single_device, replicate_and_gather, peer_all_reduce or sharded_optimizer (all); what takes several
                  GPUs needs NCCL
  --devices N     GPUs for the policies that take several (all)
  --epochs N      passes over the training set (20)
  --batch N       samples a step, all GPUs together (64)
  --seed N        of the first weights and of the order of samples (1)
  --host WORD     yes or no: whether the host trains too, on one thread (yes)
)";

/// A whole number in [low, high]; throws std::invalid_argument.
std::uint64_t number(std::string_view option, std::string_view text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw std::invalid_argument(std::string(option) + " needs a whole number from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", not '" + std::string(text) + "'");
  }
  return value;
}

struct options {
  examples::settings common;
  bool host = true;
};

/// Throws std::invalid_argument.
options parse(std::vector<std::string_view> const& words, int gpus) {
  options chosen;
  chosen.common.devices = gpus;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    std::string_view const option = words[i];
    if (i + 1 == words.size()) {
      throw std::invalid_argument(std::string(option) + " is no option, or lacks its value");
    }
    std::string_view const value = words[i + 1];
    auto const one_of = [&](std::vector<std::string_view> const& allowed) {
      if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
        throw std::invalid_argument(std::string(option) + " does not know '" + std::string(value) + "'");
      }
      return std::string(value);
    };
    if (option == "--data") {
      chosen.common.data = value;
    } else if (option == "--policy") {
      chosen.common.policy = one_of({"all", "single_device", "replicate_and_gather", "peer_all_reduce", "sharded_optimizer"});
    } else if (option == "--devices") {
      chosen.common.devices = static_cast<int>(number(option, value, 1, static_cast<std::uint64_t>(gpus)));
    } else if (option == "--epochs") {
      chosen.common.epochs = static_cast<int>(number(option, value, 1, 100000));
    } else if (option == "--batch") {
      chosen.common.batch = static_cast<std::size_t>(number(option, value, 1, 1U << 20U));
    } else if (option == "--seed") {
      chosen.common.seed = number(option, value, 0, UINT64_MAX);
    } else if (option == "--host") {
      chosen.host = one_of({"yes", "no"}) == "yes";
    } else {
      throw std::invalid_argument("there is no option " + std::string(option));
    }
  }
  return chosen;
}

int compare(options const& chosen) {
  examples::settings const& s = chosen.common;
  bool const several = s.policy != "single_device";
  if (several && !examples::with_nccl) {
    if (s.policy != "all") {
      throw examples::skipped(s.policy + " needs NCCL, which was not there when this was built");
    }
    std::printf("single_device only: the other policies need NCCL, which was not there when this was built\n");
  }
  examples::task const digits = examples::read(s.data);
  std::printf("%zu digits to train on, %zu to test with\n", digits.train.rows(), digits.test.rows());
  std::vector<examples::outcome> outcomes;
  if (chosen.host) {
    examples::run_policies<examples::mlp, false>(s, digits, outcomes);
  }
  examples::run_policies<examples::perceptron<>, examples::with_nccl>(s, digits, outcomes);
  return examples::report(s, outcomes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> const words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::fputs(usage, stdout);
    return 0;
  }
  try {
    int const gpus = lockstep::cuda::device_count();
    if (gpus == 0) {
      throw examples::skipped("needs a GPU, and the CUDA runtime sees none");
    }
    examples::one_thread_a_product();
    return compare(parse(words, gpus));
  } catch (examples::skipped const& e) {
    std::printf("skipped: %s\n", e.what());
    return 77;
  } catch (std::invalid_argument const& e) {
    std::fprintf(stderr, "digits_cuda: %s; --help lists the options\n", e.what());
    return 2;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "digits_cuda: %s\n", e.what());
    return 1;
  }
}
