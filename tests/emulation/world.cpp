// SPDX-License-Identifier: Apache-2.0
#include "emulation/world.hpp"

#include "emulation/sanitizers.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

namespace dyncp_emulation {
namespace {

constexpr std::size_t host_stack_bytes = 1024 * 1024;
constexpr std::int64_t tick_us = 50;

world* the_world = nullptr;

}  // namespace

struct world::host_fiber {
  explicit host_fiber(std::int32_t r) : rank(r) {}
  host_fiber(std::int32_t r, std::size_t stack_bytes) : context(stack_bytes), rank(r) {}

  fiber context;
  world* owner = nullptr;
  std::function<void()> body;
  const std::function<bool()>* ready = nullptr;  // what it waits for
  bool pausing = false;
  bool given_up = false;  // what it waits for will not come
  bool finished = false;
  std::int32_t rank = 0;  // -1: a stream
  std::int32_t current_device = 0;
};

world* world::current() noexcept { return the_world; }

world::world(const world_options& options) : options_(options), random_(options.seed) {
  if (the_world != nullptr) std::abort();
  the_world = this;
  fibers_.push_back(std::make_unique<host_fiber>(0));
  running_ = fibers_.front().get();
}

world::~world() {
  const unchecked scope;
  // Streams end when they find out; what they were doing is cut short.
  ending_ = true;
  while (std::any_of(fibers_.begin() + 1, fibers_.end(),
                     [](const auto& f) { return !f->finished; })) {
    switch_away();
  }
  the_world = nullptr;
}

std::int32_t world::rank() const noexcept { return std::max(0, running_->rank); }
std::int32_t& world::current_device() noexcept { return running_->current_device; }

grid_counters world::counters() const {
  grid_counters sum;
  for (const auto& s : streams_) {
    if (s->runner_ == nullptr) continue;
    const grid_counters& c = s->runner_->counters();
    sum.kernels += c.kernels;
    sum.blocks += c.blocks;
    sum.barriers += c.barriers;
    sum.warp_meetings += c.warp_meetings;
    sum.polls += c.polls;
  }
  return sum;
}

world::host_fiber& world::start(std::function<void()> body, std::int32_t rank) {
  reap();
  fibers_.push_back(std::make_unique<host_fiber>(rank, host_stack_bytes));
  host_fiber& f = *fibers_.back();
  f.owner = this;
  f.body = std::move(body);
  f.context.prepare(&fiber_main, &f);
  return f;
}

void world::reap() {
  std::erase_if(fibers_, [this](const auto& f) { return f->finished && f.get() != running_; });
}

void world::fiber_main(void* argument) {
  auto& me = *static_cast<host_fiber*>(argument);
  me.body();
  const unchecked scope;
  me.finished = true;
  me.owner->switch_away();
  std::abort();
}

world::host_fiber* world::choose() {
  std::vector<host_fiber*> able;
  std::vector<host_fiber*> pausing;
  for (const auto& f : fibers_) {
    if (f->finished) continue;
    if (f->ready != nullptr && !ending_ && !f->given_up && !(*f->ready)()) continue;
    (f->pausing ? pausing : able).push_back(f.get());
  }
  // While the world ends, only streams go on: its owner waits for them.
  if (ending_) {
    std::erase_if(able, [](const host_fiber* f) { return f->rank >= 0; });
    pausing.clear();
  }
  // Who pauses sleeps until nobody else can do anything, or is awake before: a rank that asks in a
  // loop sees the others in the middle of things, too.
  const bool tick = able.empty() && !pausing.empty();
  if (tick) now_us_ += tick_us;
  if (tick || (!pausing.empty() && random_.below(32) == 0)) able.swap(pausing);
  if (able.empty()) return nullptr;
  return able[random_.below(static_cast<std::uint32_t>(able.size()))];
}

void world::switch_away() {
  host_fiber* next = choose();
  if (next == nullptr && ending_) next = fibers_.front().get();
  if (next == nullptr) {
    report(fault_kind::deadlock, "every rank and every stream waits");
    for (const auto& f : fibers_) f->given_up = f->rank >= 0;
    next = choose();
    if (next == nullptr) std::abort();
  }
  host_fiber* const me = running_;
  if (next == me) return;
  running_ = next;
  const checked others;
  next->context.resume_from(me->context);
}

void world::yield() {
  const unchecked scope;
  switch_away();
}

bool world::wait_until(const std::function<bool()>& ready) {
  const unchecked scope;
  host_fiber& me = *running_;
  while (!ready()) {
    if (ending_ || me.given_up) {
      me.given_up = false;
      return false;
    }
    me.ready = &ready;
    switch_away();
    me.ready = nullptr;
  }
  me.given_up = false;
  return true;
}

void world::pause() {
  const unchecked scope;
  host_fiber& me = *running_;
  me.pausing = true;
  switch_away();
  me.pausing = false;
}

void world::report(fault_kind kind, const std::string& text) {
  if (fault_.kind == fault_kind::none) fault_ = {kind, text};
}

emulated_stream* world::open_stream(std::int32_t device) {
  const unchecked scope;
  streams_.push_back(std::make_unique<emulated_stream>());
  emulated_stream& s = *streams_.back();
  s.device_ = device;
  start([this, &s] { serve(s); }, -1);
  return &s;
}

void world::close_stream(emulated_stream* s) {
  const unchecked scope;
  s->closed_ = true;
}

bool world::is_stream(const emulated_stream* s) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [s](const auto& t) { return t.get() == s && !t->closed_; });
}

void world::serve(emulated_stream& s) {
  const unchecked scope;
  s.runner_ = std::make_unique<grid_runner>(running_->context, memory_, random_, options_.grid);
  const std::function<bool()> ready = [&s] { return !s.queue_.empty() || s.closed_; };
  while (wait_until(ready) && !s.queue_.empty()) {
    std::function<void()> work = std::move(s.queue_.front());
    s.queue_.pop_front();
    acquire(&s.handed_over_);
    if (fault_.kind == fault_kind::none) {
      const checked user;
      work();
    }
    work = nullptr;
    release(&s.finished_);
    ++s.done_;
    // Others may come in between two pieces of work.
    if (!ending_) switch_away();
  }
}

void world::enqueue(emulated_stream* s, std::function<void()> work) {
  const unchecked scope;
  s->queue_.push_back(std::move(work));
  ++s->queued_;
  release(&s->handed_over_);
  // Sometimes the stream is at it before the caller does anything else.
  if (random_.below(4) == 0) switch_away();
}

void world::enqueue_kernel(emulated_stream* s, grid_request request) {
  enqueue(s, [this, s, request = std::move(request)] {
    const fault f = s->runner_->run(request);
    if (f.kind != fault_kind::none) report(f.kind, f.text);
  });
}

bool world::wait_idle(emulated_stream* s) {
  const unchecked scope;
  const std::uint64_t until = s->queued_;
  const bool done = wait_until([s, until] { return s->done_ >= until; });
  acquire(&s->finished_);
  return done;
}

void world::run_ranks(std::int32_t ranks, const std::function<void(std::int32_t)>& f) {
  const unchecked scope;
  release(&ranks_begun_);
  std::int32_t left = ranks;
  std::exception_ptr failure;
  for (std::int32_t r = 0; r < ranks; ++r) {
    start([this, r, &f, &left, &failure] {
      acquire(&ranks_begun_);
      try {
        f(r);
      } catch (...) {
        failure = std::current_exception();
      }
      release(&ranks_done_);
      --left;
    }, r);
  }
  while (!wait_until([&left] { return left == 0; })) {
  }
  acquire(&ranks_done_);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dyncp_emulation
