// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The messages that docs/errors.md lists are those that come, one after another.

#include "../support/threads.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

struct line {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;

  line() = default;
  explicit line(std::function<void(line&, lockstep::train_context<backend>&)> work) : body(std::move(work)) {}

  std::vector<lockstep::parameter> const& parameters() const { return listed; }
  void train(lockstep::train_context<backend>& ctx, batch const&) {
    if (body) {
      body(*this, ctx);
    }
  }

  std::function<void(line&, lockstep::train_context<backend>&)> body;
  std::vector<float> values = std::vector<float>(4);
  std::vector<lockstep::parameter> listed{{"weight", values.data(), values.data() + 2, {2}}};
};

template <class Policy>
using line_trainer = lockstep::trainer<line, lockstep::adamw, Policy>;
using peers = lockstep::peer_all_reduce<>;

/// The message of what `work` throws, which must be an E.
template <class E, class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (E const& e) {
    return e.what();
  } catch (std::exception const& e) {
    return std::string("of another type: ") + e.what();
  }
  return "nothing was thrown";
}

/// The lines of the block below the page's last heading.
std::vector<std::string> lines_of_the_page() {
  std::ifstream page{LOCKSTEP_DATA_DIR "/../../docs/errors.md"};
  std::vector<std::string> lines;
  bool inside = false;
  bool below = false;
  for (std::string text; std::getline(page, text);) {
    below = below || text == "## What they say";
    if (below && text.starts_with("```")) {
      inside = !inside;
    } else if (inside) {
      lines.push_back(text);
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("errors page: every message it lists is one that comes, and every one that this test provokes is listed") {
  using lockstep::devices;
  using lockstep::usage_error;
  std::vector<float> const x(4, 1.0F);
  auto const build = [](devices const& on, auto change, lockstep::adamw optimizer = {}, lockstep::host::options options = {}) {
    line_trainer<peers> const built{on,
                                    [&](lockstep::device_context<lockstep::host>& device) {
                                      line made;
                                      if (device.rank() == lockstep::rank_id{1}) {
                                        change(made.listed);
                                      }
                                      return made;
                                    },
                                    optimizer, options};
  };
  auto const as_it_is = [](auto&) {};
  auto const two = devices::first(2);
  auto const step_with = [&](auto body, int ranks = 2, lockstep::host::options const& options = {}) {
    line_trainer<peers> trainer{devices::first(ranks),
                                [&](lockstep::device_context<lockstep::host>& device) {
                                  return number(device.rank()) == ranks - 1 ? line{body} : line{};
                                },
                                lockstep::adamw{}, options};
    trainer.step({x, x});
    trainer.step({x, x});
  };
  using context = lockstep::train_context<lockstep::host>;

  std::vector<std::string> const said{
      // before work
      message_of<usage_error>([&] { static_cast<void>(devices::first(0)); }),
      message_of<usage_error>([&] {
        static_cast<void>(devices{3, 1, 3});
      }),
      message_of<usage_error>([&] {
        line_trainer<lockstep::single_device> const built{two, [](auto&) { return line{}; }, lockstep::adamw{}};
      }),
      message_of<usage_error>([&] { build(two, [](auto& list) { list.clear(); }); }),
      message_of<usage_error>([&] { build(two, [](auto& list) { list[0].value = nullptr; }); }),
      message_of<usage_error>([&] { build(two, [](auto& list) {
                                      list[0].shape = {1, 2};
                                    }); }),
      message_of<usage_error>([&] { build(devices::first(1), as_it_is, {.beta1 = 1}); }),
      message_of<lockstep::out_of_memory>([&] {
        lockstep::host_faults const faults{.allocations = {{.device = lockstep::device_id{1}}}};
        build(two, as_it_is, {}, {.faults = std::make_shared<lockstep::host_faults const>(faults)});
      }),
      message_of<usage_error>([&] {
        line_trainer<peers> trainer{two, [](auto&) { return line{}; }, lockstep::adamw{}};
        trainer.step({});
      }),
      message_of<usage_error>([&] {
        line_trainer<peers> trainer{two, [](auto&) { return line{}; }, lockstep::adamw{}};
        trainer.step({x, x}, {.micro_batches = 0});
      }),
      message_of<usage_error>([&] {
        line_trainer<peers> trainer{two, [](auto&) { return line{}; }, lockstep::adamw{}};
        trainer.model().listed[0].value = trainer.model().values.data() + 1;
        trainer.step({x, x});
      }),
      message_of<lockstep::file_error>([&] {
        std::istringstream file{"0.5,1.5,12\n"};
        static_cast<void>(lockstep::read_labelled_csv(file, "digits.csv", 10));
      }),
      // during a step
      message_of<lockstep::rank_error>([&] { step_with([](line&, context&) { throw std::runtime_error("no more paper"); }); }),
      message_of<usage_error>([&] { step_with([](line&, context& ctx) { ctx.gradient_ready(1); }); }),
      message_of<usage_error>([&] { step_with([](line&, context& ctx) { ctx.unused(0); }); }),
      message_of<usage_error>([&] {
        step_with(
            [](line& model, context& ctx) {
              ctx.gradient_ready(0);
              model.values[2] = 1;
            },
            2, {.checking = lockstep::checking::marks});
      }),
      message_of<lockstep::timeout_error>([&] {
        lockstep::host_faults const faults{.absences = {{.device = lockstep::device_id{1}, .step = 2}}};
        step_with([](line&, context&) {}, 2,
                  {.timeout_seconds = 1, .faults = std::make_shared<lockstep::host_faults const>(faults)});
      }),
      // in a loop with communicators or a replica
      support::on_ranks(2,
                        [communicators = std::make_shared<std::vector<lockstep::shared_memory_communicator>>(
                             lockstep::shared_memory_communicator::create(
                                 std::vector<lockstep::device_id>{lockstep::device_id{0}, lockstep::device_id{1}}, {}))](
                            int rank) {
                          std::vector<float> data(10);
                          lockstep::typed_span const part{data.data(), rank == 0 ? 10U : 9U, lockstep::element_type::f32};
                          (*communicators)[static_cast<std::size_t>(rank)].all_reduce(part, lockstep::reduction::sum, {});
                        })[0],
      message_of<usage_error>([&] {
        lockstep::host::device device;
        line mine;
        lockstep::replica<lockstep::single_device, lockstep::adamw, lockstep::host> replica{
            device, lockstep::local_communicator<lockstep::host>{}, mine.parameters(), lockstep::adamw{}};
        auto step = replica.begin({.samples = 3});
        static_cast<void>(step.micro_batch(2));
        static_cast<void>(step.finish());
      }),
  };

  std::vector<std::string> const listed = lines_of_the_page();
  CHECK(listed.size() == said.size());
  for (std::size_t i = 0; i < said.size(); ++i) {
    CAPTURE(said[i]);
    CHECK(i < listed.size());
    CHECK((i < listed.size() && said[i].find(listed[i]) != std::string::npos));
  }
}

TEST_CASE("errors page: faults are given to a trainer as the page shows") {
  lockstep::host::options const options{
      .timeout_seconds = 1,
      .faults = std::make_shared<lockstep::host_faults const>(
          lockstep::host_faults{.absences = {{.device = lockstep::device_id{1}, .step = 2}}}),
  };
  std::vector<float> const x(4, 1.0F);
  line_trainer<peers> trainer{lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::adamw{}, options};
  trainer.step({x, x});
  try {
    trainer.step({x, x});
    FAIL("the step should have failed");
  } catch (lockstep::timeout_error const& e) {
    CHECK(e.missing() == lockstep::rank_id{1});
  }
}

TEST_CASE("errors page: a failure in infer alone leaves the trainer as it was") {
  struct guess : line {
    using output = std::span<float>;
    void infer(lockstep::infer_context<backend>&, batch const& shard, output const&) {
      if (std::get<0>(shard)[0] < 0) {
        throw std::runtime_error("below 0");
      }
    }
  };
  lockstep::trainer<guess, lockstep::adamw, peers> trainer{lockstep::devices::first(2), [](auto&) { return guess{}; },
                                                           lockstep::adamw{}};
  std::vector<float> const good(4, 1.0F);
  std::vector<float> const bad{1, 1, -1, 1};
  std::vector<float> out(4);
  CHECK(message_of<lockstep::rank_error>([&] {
          trainer.predict(guess::batch{bad, bad}, std::span{out});
        }) == "rank 1 (device 1), predicting: below 0");
  trainer.predict(guess::batch{good, good}, std::span{out});
  CHECK(trainer.step({good, good}).step() == 1);
}

TEST_CASE("errors page: hyperparameters changed to what the optimizer refuses are refused before the step") {
  std::vector<float> const x(4, 1.0F);
  line_trainer<peers> trainer{lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::adamw{}};
  trainer.optimizer().beta1 = 1;
  CHECK(message_of<lockstep::usage_error>([&] {
          trainer.step({x, x});
        }) == "lockstep: adamw.beta1 must lie in [0, 1), and is 1");
  CHECK_FALSE(trainer.failed());
  trainer.optimizer().beta1 = 0.9F;
  CHECK(trainer.step({x, x}).step() == 1);
}
