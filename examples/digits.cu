// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of handwritten digits on the host and on GPUs, and compares the two. The training loop is the same, in
// classifier.hpp: the model and where samples lie are all that differs.

#include "classifier.hpp"
#include "device_table.cuh"
#include "models/mlp.hpp"
#include "models/perceptron.cuh"
#include "report.hpp"
#include "settings.hpp"

#include <lockstep/lockstep.cuh>
#if defined(LOCKSTEP_EXAMPLE_NCCL)
#include <lockstep/comm/nccl.cuh>
#endif

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
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
  static void read(void* to, void const* from, std::size_t bytes) {
    lockstep::check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
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

/// All in f32; what takes several GPUs needs NCCL.
constexpr examples::policies most = examples::with_nccl ? examples::policies::all : examples::policies::single_device;
constexpr examples::policies some =
    examples::with_nccl ? examples::policies::with_peer_all_reduce : examples::policies::single_device;

/// The same precision on the host, and on GPUs.
template <class HostModel, class Model, examples::policies Built>
void run_both(examples::settings const& s, examples::task const& digits, std::vector<examples::outcome>& outcomes) {
  if (s.host) {
    examples::settings on_host = s;
    on_host.precision = s.precision == "tf32" ? "f32" : s.precision;
    examples::run_policies<HostModel, examples::policies::single_device>(on_host, digits, outcomes);
  }
  examples::run_policies<Model, Built>(s, digits, outcomes);
}

int compare(examples::settings const& s) {
  using examples::compute;
  if (s.policy != "single_device" && !examples::with_nccl) {
    if (s.policy != "all") {
      throw examples::skipped(s.policy + " needs NCCL, which was not there when this was built");
    }
    std::printf("single_device only: the other policies need NCCL, which was not there when this was built\n");
  }
  std::ofstream json = examples::open_json(s);
  examples::task const digits = examples::read(s.data);
  std::printf("%zu digits to train on, %zu to test with\n", digits.train.rows(), digits.test.rows());
  std::vector<examples::outcome> outcomes;
  if (s.precision == "f32") {
    run_both<examples::mlp, examples::perceptron<compute::f32>, most>(s, digits, outcomes);
  } else if (s.precision == "tf32") {
    run_both<examples::mlp, examples::perceptron<compute::tf32>, some>(s, digits, outcomes);
  } else if (s.precision == "bf16") {
    run_both<examples::basic_mlp<lockstep::bfloat16>, examples::perceptron<compute::bf16>, some>(s, digits, outcomes);
  } else {
    run_both<examples::basic_mlp<lockstep::float16>, examples::perceptron<compute::f16>, some>(s, digits, outcomes);
  }
  examples::write_json(json, s, outcomes);
  return examples::report(s, outcomes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> const words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    examples::print_usage({.gpus = true});
    return 0;
  }
  try {
    int const gpus = lockstep::cuda::device_count();
    if (gpus == 0) {
      throw examples::skipped("needs a GPU, and the CUDA runtime sees none");
    }
    examples::one_thread_a_product();
    return compare(examples::parse(words, {.gpus = true, .devices = gpus}));
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
