// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/lockstep.hpp>

#if defined(LOCKSTEP_EXAMPLE_ZLIB)
#include <lockstep/data/gzip.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The program that digits.cpp and digits.cu share: trains a classifier of images under several policies, and compares them.
/// What differs between the host and GPUs is the model, and where samples lie.
namespace examples {

struct settings {
  std::string data = "digits";
  std::string policy = "all";
  int epochs = 20;
  int devices = 4;
  std::size_t batch = 64;
  std::uint64_t seed = 1;
};

/// Something that this build or this machine can't do.
class skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ---- what is learned ------------------------------------------------------------------------------------------------------

using image_table = lockstep::table<float, int>;  // pixels, from 0 to 1, and the class

struct task {
  image_table train;
  image_table test;
  std::vector<std::size_t> widths;  // of the perceptron that learns it
};

inline std::ifstream open(std::string const& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) {
    throw lockstep::file_error(path, 0, "expected a readable file");
  }
  return file;
}

/// Images of 8 x 8 pixels. Every fifth sample of a fixed shuffle is for testing.
inline task read_digits(std::string const& path) {
  constexpr std::size_t pixels = 64;
  constexpr int classes = 10;
  std::ifstream file = open(path);
  image_table all = lockstep::read_labelled_csv(file, path, classes, {.columns = pixels + 1});
  for (float& pixel : all.values<0>()) {
    pixel /= 16.0F;  // counts 0 to 16
  }
  std::vector<std::size_t> train;
  std::vector<std::size_t> test;
  for (std::size_t const row : lockstep::sampler{all.rows(), 1, lockstep::rank_id{0}, {.seed = 2026}}.epoch(0)) {
    ((train.size() + test.size()) % 5 == 4 ? test : train).push_back(row);
  }
  return {all.select(train), all.select(test), {pixels, 64, classes}};
}

/// Images of 28 x 28 pixels, in the four files of MNIST.
inline task read_mnist([[maybe_unused]] std::string const& folder) {
#if defined(LOCKSTEP_EXAMPLE_ZLIB)
  constexpr int classes = 10;
  auto const read = [&](std::string const& part) {
    std::string const images_path = folder + "/" + part + "-images-idx3-ubyte.gz";
    std::string const labels_path = folder + "/" + part + "-labels-idx1-ubyte.gz";
    std::ifstream images_file = open(images_path);
    std::ifstream labels_file = open(labels_path);
    lockstep::gzip_istream images{images_file, images_path};
    lockstep::gzip_istream labels{labels_file, labels_path};
    image_table all = lockstep::read_labelled_idx(images, images_path, labels, labels_path, classes);
    for (float& pixel : all.values<0>()) {
      pixel /= 255.0F;
    }
    return all;
  };
  return {read("train"), read("t10k"), {784, 128, classes}};
#else
  throw skipped("the files of MNIST are compressed, and zlib was not there when this was built");
#endif
}

/// "digits", "mnist", or a file of digits.
inline task read(std::string const& data) {
  if (data == "mnist") {
    return read_mnist(LOCKSTEP_DATA_DIR "/mnist10k");
  }
  return read_digits(data == "digits" ? LOCKSTEP_DATA_DIR "/digits/digits.csv" : data);
}

// ---- training -------------------------------------------------------------------------------------------------------------

/// Where samples lie. This is the host's; GPUs have another.
template <class Backend>
struct placement {
  static constexpr char const* where = "host";
  static constexpr std::size_t prefetch = 2;  // of the loader

  /// Told of each device that a model is built on.
  void meet(lockstep::device_context<Backend> const&) {}
  /// A data set for the loader.
  image_table const& put(image_table const& all, std::size_t) { return all; }

  template <class Trainer>
  std::vector<float> predict(Trainer& trainer, image_table const& test, std::size_t classes) {
    std::vector<float> probabilities(test.rows() * classes);
    lockstep::sample_view<float> const predicted{probabilities.data(), test.rows(), classes};
    trainer.predict(test.view(), predicted);
    return probabilities;
  }
  static std::vector<float> values(lockstep::parameter const& p) {
    auto const* const first = static_cast<float const*>(p.value);
    return {first, first + p.count()};
  }
};

/// One step on a batch that the trainer cuts, or on batches that are cut already, one a device.
template <class Trainer>
auto take_step(Trainer& trainer, typename Trainer::batch_type const& batch) {
  return trainer.step(batch);
}
template <class Trainer>
auto take_step(Trainer& trainer, std::vector<typename Trainer::batch_type> const& shards) {
  return trainer.step_shards(shards);
}

/// What one policy came to.
struct outcome {
  std::string where;
  std::string policy;
  int devices = 0;
  double accuracy = 0;
  double seconds = 0;
  double samples_a_second = 0;
  double bytes_a_step = 0;
  std::vector<float> parameters;
};

template <class Model, class Policy>
outcome run(std::string const& policy, int devices, settings const& s, task const& t) {
  using backend = typename Model::backend;
  placement<backend> memory;
  std::printf("%s: %s on %d %s\n", memory.where, policy.c_str(), devices, devices == 1 ? "device" : "devices");
  std::fflush(stdout);

  lockstep::trainer<Model, lockstep::adamw, Policy> trainer{
      lockstep::devices::first(devices),
      [&](lockstep::device_context<backend>& device) {
        memory.meet(device);
        return Model{device, t.widths, s.seed};
      },
      {lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.01F},   // weights
       lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.0F}}};  // biases

  auto const& data = memory.put(t.train, s.batch);
  lockstep::loader loader{data, {.batch = s.batch, .seed = s.seed, .prefetch = memory.prefetch}};
  std::uint64_t const steps = static_cast<std::uint64_t>(s.epochs) * loader.batches();
  std::uint64_t const moved_before = trainer.bytes_moved();
  auto const start = std::chrono::steady_clock::now();
  {
    lockstep::progress progress{steps};
    for (int epoch = 0; epoch < s.epochs; ++epoch) {
      for (auto const& batch : loader.epoch(static_cast<std::uint64_t>(epoch))) {
        auto const result = take_step(trainer, batch);
        progress.update(result);
      }
    }
    trainer.synchronize();
  }
  std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;

  outcome done;
  done.where = memory.where;
  done.policy = policy;
  done.devices = devices;
  done.seconds = spent.count();
  done.samples_a_second = static_cast<double>(s.epochs) * static_cast<double>(t.train.rows()) / spent.count();
  done.bytes_a_step = static_cast<double>(trainer.bytes_moved() - moved_before) / static_cast<double>(steps);

  std::size_t const classes = t.widths.back();
  std::vector<float> const probabilities = memory.predict(trainer, t.test, classes);
  std::size_t right = 0;
  for (std::size_t i = 0; i < t.test.rows(); ++i) {
    auto const row = std::span{probabilities}.subspan(i * classes, classes);
    auto const guess = std::max_element(row.begin(), row.end()) - row.begin();
    right += guess == t.test.values<1>()[i] ? 1U : 0U;
  }
  done.accuracy = static_cast<double>(right) / static_cast<double>(t.test.rows());

  for (lockstep::parameter const& p : trainer.model().parameters()) {
    std::vector<float> const values = placement<backend>::values(p);
    done.parameters.insert(done.parameters.end(), values.begin(), values.end());
  }
  return done;
}

/// single_device, against which the others are measured, and what `s.policy` asks for beside it.
template <class Model, bool Several>
void run_policies(settings const& s, task const& t, std::vector<outcome>& outcomes) {
  outcomes.push_back(run<Model, lockstep::single_device>("single_device", 1, s, t));
  if constexpr (Several) {
    if (s.policy == "all" || s.policy == "replicate_and_gather") {
      outcomes.push_back(run<Model, lockstep::replicate_and_gather<>>("replicate_and_gather", s.devices, s, t));
    }
    if (s.policy == "all" || s.policy == "peer_all_reduce") {
      outcomes.push_back(run<Model, lockstep::peer_all_reduce<>>("peer_all_reduce", s.devices, s, t));
    }
    if (s.policy == "all" || s.policy == "sharded_optimizer") {
      outcomes.push_back(run<Model, lockstep::sharded_optimizer<>>("sharded_optimizer", s.devices, s, t));
    }
  }
}

inline double largest_difference(std::span<float const> a, std::span<float const> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = (std::max)(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

/// Prints a table. Returns the exit status: 0 when each of them learned something.
inline int report(settings const& s, std::vector<outcome> const& outcomes) {
  std::printf("\nafter %d %s\n", s.epochs, s.epochs == 1 ? "epoch" : "epochs");
  std::printf("%-5s %-22s %7s %13s %9s %11s %22s %13s\n", "", "policy", "devices", "test accuracy", "seconds", "samples/s",
              "largest difference of", "bytes moved");
  std::printf("%-5s %-22s %7s %13s %9s %11s %22s %13s\n", "", "", "", "", "", "", "a parameter, to first", "a step");
  bool learned = true;
  for (outcome const& o : outcomes) {
    std::printf("%-5s %-22s %7d %13.4f %9.2f %11.0f %22.2e %13.0f\n", o.where.c_str(), o.policy.c_str(), o.devices, o.accuracy,
                o.seconds, o.samples_a_second, largest_difference(o.parameters, outcomes.front().parameters), o.bytes_a_step);
    learned = learned && o.accuracy > 0.5;
  }
  if (!learned) {
    std::printf("some accuracy is not above 0.5\n");
  }
  return learned ? 0 : 1;
}

}  // namespace examples
