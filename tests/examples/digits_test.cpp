// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The command line of the digits programs, and what they write.

#include "../../examples/report.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr examples::machine host{.devices = 8};
constexpr examples::machine with_gpus{.gpus = true, .devices = 2};

}  // namespace

TEST_CASE("digits: options say what is trained, and how") {
  examples::settings const s = examples::parse({"--data",      "mnist", "--policy",        "peer_all_reduce",
                                                "--devices",   "8",     "--epochs",        "3",
                                                "--batch",     "128",   "--micro-batches", "2",
                                                "--precision", "f16",   "--rate",          "1e-3",
                                                "--warmup",    "50",    "--schedule",      "cosine",
                                                "--clip",      "0.5",   "--seed",          "7",
                                                "--seeds",     "5",     "--json",          "out.json"},
                                               host);
  CHECK(s.data == "mnist");
  CHECK(s.policy == "peer_all_reduce");
  CHECK(s.devices == 8);
  CHECK(s.epochs == 3);
  CHECK(s.batch == 128);
  CHECK(s.micro_batches == 2);
  CHECK(s.precision == "f16");
  CHECK(s.rate == 1e-3F);
  CHECK(s.warm_up_steps == 50);
  CHECK(s.schedule == "cosine");
  CHECK(s.clip == 0.5F);
  CHECK(s.seed == 7);
  CHECK(s.seeds == 5);
  CHECK(s.json == "out.json");
}

TEST_CASE("digits: GPUs have options of their own, and all of them are used without one") {
  examples::settings const s = examples::parse({"--precision", "tf32", "--host", "no"}, with_gpus);
  CHECK(s.precision == "tf32");
  CHECK_FALSE(s.host);
  CHECK(s.devices == 2);
  CHECK(examples::parse({}, host).devices == 4);
  CHECK_THROWS_AS(examples::parse({"--precision", "tf32"}, host), std::invalid_argument);
  CHECK_THROWS_AS(examples::parse({"--host", "no"}, host), std::invalid_argument);
}

TEST_CASE("digits: a wrong option is refused") {
  for (std::vector<std::string_view> const& words : std::vector<std::vector<std::string_view>>{
           {"--epoch", "3"},
           {"--epochs"},
           {"--epochs", "0"},
           {"--epochs", "3x"},
           {"--devices", "9"},
           {"--batch", "-1"},
           {"--micro-batches", "0"},
           {"--precision", "f64"},
           {"--rate", "-1"},
           {"--rate", "nan"},
           {"--clip", "inf"},
           {"--schedule", "linear"},
           {"--seeds", "0"},
           {"--precision", "bf16", "--policy", "sharded_optimizer"},
           {"--precision", "f16", "--policy", "replicate_and_gather"},
       }) {
    CAPTURE(words[0]);
    CHECK_THROWS_AS(examples::parse(words, host), std::invalid_argument);
  }
}

TEST_CASE("digits: the rate rises, stays or falls, and reaches its end with the last step") {
  examples::settings s;
  s.rate = 2;
  s.warm_up_steps = 10;
  auto const rate = [&s](std::uint64_t step) { return examples::optimizers(s, 110)[0].schedule(step); };
  CHECK(rate(1) == 0.1F);
  CHECK(rate(10) == 1);
  CHECK(rate(60) == 1);
  CHECK(rate(110) == 1);
  s.schedule = "cosine";
  CHECK(rate(1) == 0.1F);
  CHECK(rate(11) == 1);
  CHECK(rate(61) == doctest::Approx(0.5));
  CHECK(rate(110) < 0.001F);
  CHECK(rate(111) == 0);
  s.warm_up_steps = 1000;  // longer than the training
  CHECK(rate(110) == 0.11F);
  CHECK(examples::optimizers(s, 110)[0].weight_decay == 0.01F);
  CHECK(examples::optimizers(s, 110)[1].weight_decay == 0);
}

TEST_CASE("digits: f16 has a loss scale, and only what is asked for is bounded") {
  examples::settings s;
  CHECK_FALSE(examples::rules(s).any());
  s.precision = "f16";
  CHECK(examples::rules(s).loss_scale.has_value());
  CHECK_FALSE(examples::rules(s).max_norm.has_value());
  s.precision = "bf16";
  s.clip = 2;
  CHECK_FALSE(examples::rules(s).loss_scale.has_value());
  CHECK(examples::rules(s).max_norm == 2.0F);
}

TEST_CASE("digits: mean and spread of the seeds are written as JSON") {
  CHECK(examples::mean({0.5, 0.75}) == 0.625);
  CHECK(examples::spread({0.5, 0.75, 1.0}) == 0.25);
  CHECK(examples::spread({0.5}) == 0);
  examples::settings s;
  s.data = "a\"b";
  s.json = (std::filesystem::temp_directory_path() / "lockstep_digits_test.json").string();
  std::ofstream file = examples::open_json(s);
  examples::outcome one;
  one.where = "host";
  one.policy = "single_device";
  one.devices = 1;
  one.accuracies = {0.5, 0.75, 1.0};
  one.seconds = 2;
  examples::write_json(file, s, {one, one});
  std::stringstream written;
  written << std::ifstream{s.json}.rdbuf();
  std::filesystem::remove(s.json);
  std::string const run =
      R"({"where": "host", "policy": "single_device", "devices": 1, "accuracies": [0.5, 0.75, 1], "mean": 0.75, )"
      R"("spread": 0.25, "seconds": 2})";
  CHECK(written.str() ==
        R"({"data": "a\"b", "precision": "f32", "epochs": 20, "batch": 64, "micro_batches": 1, "rate": 0.003, )"
        R"("warmup_steps": 0, "schedule": "constant", "clip": 0, "first_seed": 1, "runs": [)" +
            run + ", " + run + "]}\n");
  s.json = "/no/such/folder/file.json";
  CHECK_THROWS_AS(examples::open_json(s), std::runtime_error);
}
