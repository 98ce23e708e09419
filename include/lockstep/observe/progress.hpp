// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <ostream>
#include <string>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace lockstep {

/// How progress is shown.
enum class progress_style : std::uint8_t {
  automatic,  ///< redraw where the output is std::cerr, std::clog or std::cout and that is a terminal; lines elsewhere
  redraw,     ///< one line, drawn again over itself
  lines,      ///< a line every few seconds, for files and logs
};

struct progress_options {
  /// Where to write; must outlive the progress.
  std::ostream& out = std::cerr;
  progress_style style = progress_style::automatic;
  /// Least time between two redraws, and between two lines.
  double redraw_seconds = 0.1;
  double line_seconds = 5;
  /// Steps that were done before, when training resumes. They count as done, not for the speed.
  std::uint64_t first_step = 0;
};

/// What a step hands back, as far as progress needs it.
template <class R>
concept progress_result = requires(R const& result) {
  { result.loss() } -> std::convertible_to<double>;
  { result.samples() } -> std::convertible_to<std::size_t>;
};

namespace progress_detail {

[[nodiscard]] inline bool is_terminal(std::ostream const& out) noexcept {
#if __has_include(<unistd.h>)
  if (&out == &std::cout) {
    return isatty(STDOUT_FILENO) != 0;
  }
  if (&out == &std::cerr || &out == &std::clog) {
    return isatty(STDERR_FILENO) != 0;
  }
#else
  static_cast<void>(out);
#endif
  return false;
}

[[nodiscard]] inline std::string format(char const* pattern, double value) {
  if (std::isnan(value)) {
    return "nan";  // printf may give it a sign
  }
  char text[400];  // the longest double in plain notation has 309 digits before its point
  int const length = std::snprintf(text, sizeof text, pattern, value);
  return {text, static_cast<std::size_t>(length)};
}

/// "1:02:03", or "2:03" below an hour.
[[nodiscard]] inline std::string clock_time(double seconds) {
  constexpr double longest = 1e9;
  if (!(seconds < longest)) {
    return "--:--";
  }
  auto const whole = static_cast<long long>(seconds + 0.5);
  auto const two = [](long long value) { return std::string(value < 10 ? "0" : "") + std::to_string(value); };
  std::string const tail = two(whole % 60);
  return whole < 3600 ? std::to_string(whole / 60) + ":" + tail
                      : std::to_string(whole / 3600) + ":" + two(whole / 60 % 60) + ":" + tail;
}

}  // namespace progress_detail

/// Shows how training gets on: `step 120/1000  12%  loss 0.3412  5120 samples/s  0:17 left`. The loss is that of the step
/// shown, not smoothed; speed and time left are from the mean over this object's life. Use `progress`; `Clock` is for tests.
/// Thread safety: one thread at a time.
template <class Clock = std::chrono::steady_clock>
class basic_progress {
 public:
  /// The clock starts here. `total_steps` 0 means that their number is not known: percent and time left are not shown. Throws
  /// usage_error unless both intervals are 0 or more.
  explicit basic_progress(std::uint64_t total_steps, progress_options const& options = {})
      : options_(options),
        redraws_(options.style == progress_style::redraw ||
                 (options.style == progress_style::automatic && progress_detail::is_terminal(options.out))),
        total_(total_steps),
        done_(options.first_step) {
    expects(options.redraw_seconds >= 0 && options.line_seconds >= 0, "progress is drawn at intervals of 0 seconds or more");
  }
  basic_progress(basic_progress const&) = delete;  // two would write over each other
  basic_progress& operator=(basic_progress const&) = delete;
  ~basic_progress() {
    try {
      finish();
    } catch (...) {  // what is shown is worth no termination
    }
  }

  /// One more step is done. Draws the first, the step that reaches the total, and otherwise no more often than the options say.
  void update(double loss, std::size_t samples) {
    count(samples);
    if (due()) {
      draw(loss);
    }
  }
  /// The same from a step's result. Its loss, which may have to wait for the device, is read only when it is drawn. Throws what
  /// reading it throws; the step counts all the same.
  template <progress_result Result>
  void update(Result const& result) {
    count(static_cast<std::size_t>(result.samples()));
    if (due()) {
      draw(static_cast<double>(result.loss()));
    }
  }

  /// Shows the last step, with the loss that was last read, if it isn't shown yet, and ends the line. Nothing when called
  /// again. The destructor calls it, and keeps silent if it fails.
  void finish() {
    if (pending_) {
      draw(loss_);
    }
    if (line_open_) {
      line_open_ = false;
      write("\n");
    }
  }

 private:
  using time_point = typename Clock::time_point;

  void count(std::size_t samples) {
    ++done_;
    ++steps_;
    samples_ += static_cast<double>(samples);
    pending_ = true;
  }

  [[nodiscard]] bool due() const {
    if (!drawn_ || done_ == total_) {
      return true;
    }
    return seconds(drawn_at_, Clock::now()) >= (redraws_ ? options_.redraw_seconds : options_.line_seconds);
  }

  void draw(double loss) {
    loss_ = loss;
    drawn_at_ = Clock::now();
    drawn_ = true;
    pending_ = false;
    std::string text = describe(seconds(start_, drawn_at_));
    if (redraws_) {
      std::size_t const length = text.size();
      text.append(length < width_ ? width_ - length : 0, ' ');  // covers what was longer before
      width_ = length;
      line_open_ = true;
      write(std::string("\r") + text);
    } else {
      write(text + "\n");
    }
  }

  [[nodiscard]] std::string describe(double elapsed) const {
    using progress_detail::format;
    std::string text = std::string("step ") + std::to_string(done_);
    if (total_ != 0) {
      double const part = static_cast<double>(done_) / static_cast<double>(total_);
      text += std::string("/") + std::to_string(total_) + "  " + format("%.0f", part < 1 ? std::floor(100 * part) : 100) + "%";
    }
    text += std::string("  loss ") + format("%.4g", loss_);
    if (elapsed > 0) {
      double const speed = samples_ / elapsed;
      text += std::string("  ") + format(speed < 100 ? "%.1f" : "%.0f", speed) + " samples/s";
      if (done_ < total_) {
        double const left = static_cast<double>(total_ - done_) * elapsed / static_cast<double>(steps_);
        text += std::string("  ") + progress_detail::clock_time(left) + " left";
      }
    }
    return text;
  }

  void write(std::string const& text) {
    options_.out.write(text.data(), static_cast<std::streamsize>(text.size()));
    options_.out.flush();
  }

  [[nodiscard]] static double seconds(time_point from, time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  progress_options options_;
  bool redraws_;
  std::uint64_t total_;
  std::uint64_t done_;       // the steps of before included
  std::uint64_t steps_ = 0;  // of this object
  double samples_ = 0;
  double loss_ = 0;
  time_point start_ = Clock::now();
  time_point drawn_at_{};
  std::size_t width_ = 0;  // of the line on the terminal
  bool drawn_ = false;
  bool pending_ = false;  // a step was counted and not drawn
  bool line_open_ = false;
};

using progress = basic_progress<>;

}  // namespace lockstep
