// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/lockstep.hpp>

#if defined(LOCKSTEP_EXAMPLE_ZLIB)
#include <lockstep/data/gzip.hpp>
#endif

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

/// The images of handwritten digits that the examples learn.
namespace examples {

/// Something that this build or this machine can't do.
class skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using image_table = lockstep::table<float, int>;  // pixels, from 0 to 1, and the class

struct task {
  image_table train;
  image_table test;
  std::vector<std::size_t> widths;  // of the perceptron that learns it
};

/// Throws file_error.
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

}  // namespace examples
