// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/batch.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/plan/split.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

/// The contract: what a backend, batch, model, optimizer, communicator and policy must have. Each concept is made of named
/// atoms, and docs/concepts.md answers each atom at its own anchor.
namespace lockstep {

// Formatters of several versions disagree about requires-expressions.
// clang-format off

// ---- names: what a type has, fitting or not -----------------------------------------------------------------------------

namespace concepts_detail {

// A name that a type has too is ambiguous in a class derived from both, however it is overloaded, templated or hidden. So a
// member that is there and does not fit is told from one that is not there.
struct every_name {
  int parameters, train, promises, infer, slots, prepare, step, publish;
  void operator()();
};
template <class T>
struct with_every_name : T, every_name {};
template <class T>
concept can_be_base = std::is_class_v<T> && !std::is_final_v<T>;

template <class T>
concept mentions_train = (can_be_base<T> && !requires { &with_every_name<T>::train; }) || requires {
  &T::train;
};
template <class T>
concept mentions_promises = (can_be_base<T> && !requires { &with_every_name<T>::promises; }) || requires {
  &T::promises;
};
template <class T>
concept mentions_infer = (can_be_base<T> && !requires { &with_every_name<T>::infer; }) || requires {
  &T::infer;
};
template <class T>
concept mentions_slots = (can_be_base<T> && !requires { &with_every_name<T>::slots; }) || requires {
  &T::slots;
};
template <class T>
concept mentions_prepare = (can_be_base<T> && !requires { &with_every_name<T>::prepare; }) || requires {
  &T::prepare;
};
template <class T>
concept mentions_step = (can_be_base<T> && !requires { &with_every_name<T>::step; }) || requires {
  &T::step;
};
template <class T>
concept mentions_call = (can_be_base<T> && !requires { &with_every_name<T>::operator(); }) || requires {
  &T::operator();
};
template <class T>
concept mentions_publish = (can_be_base<T> && !requires { &with_every_name<T>::publish; }) || requires {
  &T::publish;
};

}  // namespace concepts_detail

namespace concepts_detail {

/// Stands for any trivially copyable function object that runs on host and device.
struct function_object {
  LOCKSTEP_HOST_DEVICE void operator()() const {}
  LOCKSTEP_HOST_DEVICE void operator()(std::size_t) const {}
};

}  // namespace concepts_detail

// ---- backend: where work runs -------------------------------------------------------------------------------------------

/// A backend is a type that names its device, streams, events, memory and kernel weights. `host` is one; `cuda` another.
/// `asynchronous` says whether enqueued work runs on while the host goes on. One with a type `graph` can record steps and
/// replay them.
template <class B>
concept backend = requires {
  typename B::device;
  typename B::stream;
  typename B::stream_ref;
  typename B::event;
  typename B::buffer;
  typename B::pinned_buffer;
  typename B::weight;
  typename B::profiler_range;
  typename std::bool_constant<B::asynchronous>;
  typename B::options;
} && std::is_trivially_copyable_v<typename B::stream_ref> && std::default_initializable<typename B::stream_ref> &&
  std::is_trivially_copyable_v<typename B::weight> && std::constructible_from<typename B::stream, typename B::device&> &&
  requires(typename B::device& device, typename B::stream& own, typename B::stream_ref stream, typename B::event& event,
           typename B::options& options, void* memory, std::size_t n, std::span<transfer const> transfers,
           concepts_detail::function_object const& f) {
    { B::device_count() } -> std::convertible_to<int>;
    { options.timeout_seconds } -> std::convertible_to<double>;
    { options.checking } -> std::convertible_to<lockstep::checking>;
    { options.measure_busy } -> std::convertible_to<bool>;
    { device.id() } -> std::same_as<device_id>;
    { device.options() } -> std::convertible_to<typename B::options const&>;
    { device.stream() } -> std::same_as<typename B::stream_ref>;
    { device.allocate(n, memory_use::other) } -> std::same_as<typename B::buffer>;
    { device.allocate_pinned(n) } -> std::same_as<typename B::pinned_buffer>;
    { device.memory() } -> std::same_as<memory_usage>;
    { own.ref() } -> std::same_as<typename B::stream_ref>;
    B::zero(stream, memory, n);
    B::copy(stream, memory, static_cast<void const*>(memory), n);
    B::copy(stream, transfers);
    B::invoke(stream, f);
    B::for_each(stream, n, f);
    event.record(stream);
    event.synchronize();
    stream.wait(event);
    stream.synchronize();
    stream.check();
  };

// ---- batch: what is sliced ----------------------------------------------------------------------------------------------

/// No tuple, or one of views and `replicated` arguments.
template <class T>
concept tuple_of_views = batch_detail::elements_are_views<T>;
template <class T>
concept countable_batch = requires(T const& b) {
  { lockstep::sample_count(b) } -> std::convertible_to<std::size_t>;
};
template <class T>
concept sliceable_batch = requires(T const& b, std::size_t n) {
  { lockstep::slice(b, n, n) } -> std::convertible_to<T>;
};
template <class T>
concept batch = std::copyable<T> && tuple_of_views<T> && countable_batch<T> && sliceable_batch<T>;

// ---- model: what is trained ---------------------------------------------------------------------------------------------

template <class M>
concept names_backend = requires {
  typename M::backend;
};
template <class M>
concept names_batch = requires {
  typename M::batch;
};
template <class M>
concept has_parameters = requires(M& m) {
  m.parameters();
};
template <class L>
concept parameter_range = !std::is_void_v<L> && requires(L & list) {
  { *std::begin(list) } -> std::convertible_to<parameter const&>;
  { std::end(list) } -> std::same_as<decltype(std::begin(list))>;
  typename std::iterator_traits<decltype(std::begin(list))>::iterator_category;
};
template <class M>
concept lists_parameters = requires(M& m) {
  { m.parameters() } -> parameter_range;
};
template <class M>
concept has_train = concepts_detail::mentions_train<M>;
template <class M>
concept calls_train = requires(M& m, train_context<typename M::backend>& ctx, typename M::batch const& shard) {
  m.train(ctx, shard);
};
template <class M>
concept trains = requires(M& m, train_context<typename M::backend>& ctx, typename M::batch const& shard) {
  { m.train(ctx, shard) } -> std::same_as<void>;
};
/// A constexpr aggregate of promises.
template <class M>
concept makes_promises = requires {
  { M::promises } -> std::convertible_to<model_promises>;
  typename std::bool_constant<static_cast<model_promises>(M::promises).reports_unused>;
};
/// Makes its promises so that they are seen, or none.
template <class M>
concept well_formed_promises = makes_promises<M> || !concepts_detail::mentions_promises<M>;
template <class M>
concept names_output = requires { typename M::output; } && batch<typename M::output>;
template <class M>
concept infers = names_output<M> &&
    requires(M& m, infer_context<typename M::backend>& ctx, typename M::batch const& shard, typename M::output const& out) {
  { m.infer(ctx, shard, out) } -> std::same_as<void>;
};
/// Has no `infer`, or one that `predict` can call.
template <class M>
concept well_formed_infer = infers<M> || !concepts_detail::mentions_infer<M>;

template <class M>
concept model = names_backend<M> && backend<typename M::backend> && names_batch<M> && batch<typename M::batch> &&
    has_parameters<M> && lists_parameters<M> && trains<M> && well_formed_promises<M> && well_formed_infer<M>;

/// The promises of M; none where it makes none.
template <class M>
[[nodiscard]] consteval model_promises promises_of() {
  if constexpr (makes_promises<M>) {
    return M::promises;
  } else {
    return {};
  }
}

// ---- optimizer: what updates --------------------------------------------------------------------------------------------

/// Names its slots in a constexpr array.
template <class O>
concept names_slots = requires {
  typename std::integral_constant<std::size_t, O::slots.size()>;
  { O::slots[0] } -> std::convertible_to<std::string_view>;
};
/// Names its slots so that they are seen, or has none.
template <class O>
concept well_formed_slots = names_slots<O> || !concepts_detail::mentions_slots<O>;

/// How many slots (f32 values kept for each element) an elementwise optimizer asks for: the length of its member
/// `static constexpr std::array<std::string_view, N> slots{...}`, 0 without one.
template <class O>
inline constexpr std::size_t slot_count = 0;
template <names_slots O>
inline constexpr std::size_t slot_count<O> = O::slots.size();

/// The names of the slots, in the order of the call's arguments.
template <class O>
[[nodiscard]] constexpr std::array<std::string_view, slot_count<O>> slot_names() {
  std::array<std::string_view, slot_count<O>> names{};
  if constexpr (slot_count<O> != 0) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      names[i] = O::slots[i];
    }
  }
  return names;
}

template <class O>
concept prepares = requires(O const& opt, update_info const& info) {
  opt.prepare(info);
};

/// Stands for the prepared value of an optimizer that has no `prepare`.
struct unprepared {};

namespace concepts_detail {

template <class O>
struct prepared_of {
  using type = unprepared;
};
template <prepares O>
struct prepared_of<O> {
  using type = std::remove_cvref_t<decltype(std::declval<O const&>().prepare(std::declval<update_info const&>()))>;
};

template <class O, class Slots, class... Prepared>
inline constexpr bool called_with = false;
template <class O, std::size_t... S, class... Prepared>
inline constexpr bool called_with<O, std::index_sequence<S...>, Prepared...> =
    std::is_invocable_r_v<float, O, float, float, decltype((static_cast<void>(S), std::declval<float&>()))..., Prepared...>;

// Whether O, const or not, can be called with that many slots and the prepared value, if it prepares one.
template <class O, std::size_t Slots>
inline constexpr bool called_with_slots = called_with<O, std::make_index_sequence<Slots>>;
template <prepares O, std::size_t Slots>
inline constexpr bool called_with_slots<O, Slots> =
    called_with<O, std::make_index_sequence<Slots>, typename prepared_of<std::remove_cvref_t<O>>::type const&>;

}  // namespace concepts_detail

/// What `prepare` returns, once a step and group; `unprepared` where there is none.
template <class O>
using prepared_type = typename concepts_detail::prepared_of<O>::type;

/// Has no `prepare`, or one that can be called and whose value can go to a device.
template <class O>
concept well_formed_prepare = (prepares<O> && std::is_trivially_copyable_v<prepared_type<O>>) ||
                              !concepts_detail::mentions_prepare<O>;

/// `value = opt(value, gradient, slots..., prepared)`, with as many `float&` slots as `slots` has names.
template <class O>
concept updates_element = concepts_detail::called_with_slots<O const&, slot_count<O>>;

template <class O>
concept elementwise_optimizer =
    std::is_trivially_copyable_v<O> && well_formed_slots<O> && well_formed_prepare<O> && updates_element<O>;

/// Enqueues its own work for all parameters together.
template <class O, class Backend>
concept whole_optimizer = requires(O& opt, update_context<Backend>& ctx, std::span<parameter const> parameters) {
  { opt.step(ctx, parameters) } -> std::same_as<void>;
};

template <class O, class Backend>
concept optimizer = std::copyable<O> &&(elementwise_optimizer<O> || whole_optimizer<O, Backend>);

// ---- communicator: how ranks talk ---------------------------------------------------------------------------------------

/// How elements are combined. How 16-bit elements are added is each communicator's.
enum class reduction : std::uint8_t { sum, min, max };

/// One rank's end of a group. Every collective works in place, on `count` >= 0 elements, in the same order on every rank, and
/// is enqueued on a stream. `reduce_scatter` and `all_gather` leave, or take, part `rank` of plan::part(count, rank, size).
/// `wait` blocks until a stream or event is done, but not longer than the group's timeout, nor when another rank has ended it.
/// One with `together(work)` may fuse the collectives that `work()` enqueues.
/// One with `replay()` is told before each launch of a graph that holds its collectives.
template <class C, class Backend>
concept communicator = std::movable<C> &&
    requires(C& c, C const& k, typed_span data, typename Backend::stream_ref stream, typename Backend::event const& event,
             rank_id root) {
  { k.rank() } -> std::same_as<rank_id>;
  { k.size() } -> std::convertible_to<int>;
  { k.bytes_moved() } -> std::convertible_to<std::uint64_t>;
  c.all_reduce(data, reduction::sum, stream);
  c.reduce(data, reduction::sum, root, stream);
  c.broadcast(data, root, stream);
  c.reduce_scatter(data, reduction::sum, stream);
  c.all_gather(data, stream);
  c.wait(stream);
  c.wait(event);
  c.abort(std::string{});
  { k.aborted() } -> std::convertible_to<bool>;
  { k.abort_reason() } -> std::convertible_to<std::string>;
};

/// Let the library choose: `shared_memory` on the host, `nccl` on GPUs.
struct automatic {};

/// The communicator type of a transport on a backend, as `type`, with `static std::vector<type> create(devices, options)`: one
/// a rank. Specialised beside each communicator; empty where the two don't fit.
template <class Transport, class Backend>
struct communicator_for {};

template <class Transport, class Backend>
concept has_communicator = requires {
  typename communicator_for<Transport, Backend>::type;
};
template <class Transport, class Backend>
concept transport_for =
    has_communicator<Transport, Backend> && communicator<typename communicator_for<Transport, Backend>::type, Backend>;

// ---- policy: who reduces, who updates, who publishes --------------------------------------------------------------------

template <class P>
concept names_transport = requires {
  typename P::transport;
};
/// Has a constexpr tuning.
template <class P>
concept has_tuning = requires {
  { P::tuning_values } -> std::convertible_to<tuning>;
  typename std::bool_constant<in_range(P::tuning_values)>;
};
template <class P>
concept tuning_in_range = has_tuning<P> && in_range(P::tuning_values);
template <class P, class Communicator, class Stream>
concept reduces = requires(Communicator& c, typed_span stretch, Stream stream) {
  P::reduce(c, stretch, stream);
};
template <class P>
concept assigns_owners = requires(std::size_t count, rank_id rank, int size) {
  { P::owned(count, rank, size) } -> std::same_as<plan::range>;
};
/// Whether updated values travel under policy P.
template <class P, class Communicator, class Stream>
concept publishes = requires(Communicator& c, typed_span stretch, Stream stream) {
  P::publish(c, stretch, stream);
};
/// Has no `publish`, or one that can be called.
template <class P, class Communicator, class Stream>
concept well_formed_publish = publishes<P, Communicator, Stream> || !concepts_detail::mentions_publish<P>;

/// Whether policy P says, by `static constexpr bool splits_updates = true`, that it cuts parameters between ranks.
template <class P>
concept splits_updates = requires { requires P::splits_updates; };

/// A policy is a transport, a tuning and two or three static functions. They are given contiguous stretches of gradients and
/// values: `reduce` adds a stretch over the ranks, `owned` says which of its elements a rank updates, and `publish` brings the
/// updated values to the ranks that did not update them (absent where every rank updates everything).
template <class P, class Backend>
concept policy =
    names_transport<P> && tuning_in_range<P> && transport_for<typename P::transport, Backend> &&
    reduces<P, typename communicator_for<typename P::transport, Backend>::type, typename Backend::stream_ref> && assigns_owners<P> &&
    well_formed_publish<P, typename communicator_for<typename P::transport, Backend>::type, typename Backend::stream_ref>;

// clang-format on

}  // namespace lockstep
