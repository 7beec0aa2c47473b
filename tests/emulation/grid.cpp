// SPDX-License-Identifier: Apache-2.0
#include "emulation/grid.hpp"

#include "emulation/sanitizers.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

namespace dyncp_emulation {
namespace detail {

constexpr std::size_t page_bytes = 4096;
// The address sanitizer needs room around every local.
constexpr std::size_t thread_stack_bytes = address_sanitizer ? 512 * 1024 : 96 * 1024;
constexpr std::int64_t most_idle_polls = 200'000;

struct pending_copy {
  void* to;
  const void* from;
  std::uint32_t bytes;
  bool valid;
};

struct warp_run {
  cuda_thread* lanes[32] = {};
  void* brought[32] = {};
  std::uint32_t members = 0;
  std::uint32_t arrived = 0;
  void (*act)(void* const*) = nullptr;
  std::uint32_t in_sync = 0;  // lanes that wait in a __syncwarp
  std::uint32_t sync_lanes[32] = {};  // for whom each of them waits
  char synced = 0;            // for the thread sanitizer
};

struct cuda_thread {
  explicit cuda_thread(const fiber* within) : context(thread_stack_bytes, within) {}

  fiber context;
  uint3 index{};
  std::uint32_t lane = 0;
  warp_run* warp = nullptr;
  block_run* block = nullptr;
  grid_runner* runner = nullptr;
  std::vector<pending_copy> copies;         // not landed, oldest first
  std::vector<std::uint32_t> group_copies;  // of the committed groups, oldest first
  std::uint32_t open_copies = 0;            // in no group yet
};

/// A block under way, and the fibers and memory that serve one block after the other.
struct block_run {
  uint3 index{};
  std::vector<std::unique_ptr<cuda_thread>> threads;
  std::vector<warp_run> warps;
  std::uint32_t size = 0;  // threads of the block
  std::uint32_t live = 0;
  std::uint32_t waiting = 0;
  std::uint32_t phase = 0;
  const char* file = nullptr;
  int line = 0;
  char* mapping = nullptr;  // of the shared memory, which ends at a page that nobody may touch
  std::size_t mapping_bytes = 0;
  char* shared = nullptr;
  std::size_t shared_bytes = 0;
  char barrier[2] = {};  // for the thread sanitizer
  char handover = 0;     // the same: from a block to the next one in this slot

  ~block_run() { unmap(); }
  void unmap() {
    if (mapping != nullptr) munmap(mapping, mapping_bytes);
    mapping = nullptr;
  }
  void map(std::size_t bytes) {
    if (mapping != nullptr && bytes == shared_bytes) return;
    unmap();
    const std::size_t placed = (bytes + 15) / 16 * 16;
    const std::size_t pages = (placed + page_bytes - 1) / page_bytes * page_bytes;
    mapping_bytes = pages + 2 * page_bytes;
    void* const memory = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    mapping = static_cast<char*>(memory);
    mprotect(mapping, page_bytes, PROT_NONE);
    mprotect(mapping + page_bytes + pages, page_bytes, PROT_NONE);
    shared = mapping + page_bytes + pages - placed;
    shared_bytes = bytes;
  }
};

namespace {

cuda_thread* current = nullptr;

// What the processor finds: an access to a page that nobody may touch. The handler cannot leave
// the fiber, so it makes the fiber call `landing` when it returns.
const void* bad_address = nullptr;

[[noreturn]] void landing() { current->runner->raise_access(bad_address); }

void on_signal(int number, siginfo_t* info, void* raw) {
  if (current == nullptr) {  // not a kernel's: die of it
    signal(number, SIG_DFL);
    return;
  }
  bad_address = info->si_addr;
  auto* const context = static_cast<ucontext_t*>(raw);
  const auto top = reinterpret_cast<std::uintptr_t>(current->context.top());
#if defined(__x86_64__)
  context->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(top - 4096 - 8);
  context->uc_mcontext.gregs[REG_RIP] =
      static_cast<greg_t>(reinterpret_cast<std::uintptr_t>(&landing));
#else
  context->uc_mcontext.sp = top - 4096;
  context->uc_mcontext.pc = reinterpret_cast<std::uintptr_t>(&landing);
#endif
}

/// Catches bad accesses while a kernel runs; the program's own handlers, such as doctest's, are
/// there again after it.
class signal_scope {
 public:
  signal_scope() {
    if (address_sanitizer || thread_sanitizer) return;
    static char stack[64 * 1024];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = &on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  signal_scope(const signal_scope&) = delete;
  signal_scope& operator=(const signal_scope&) = delete;
  ~signal_scope() {
    if (address_sanitizer || thread_sanitizer) return;
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  stack_t old_stack_{};
  struct sigaction old_segv_ {};
  struct sigaction old_bus_ {};
};

bool waits_for(const warp_run& w, std::uint32_t lane) {
  for (std::uint32_t l = 0; l < 32; ++l) {
    if (w.in_sync >> l & 1U && w.sync_lanes[l] >> lane & 1U) return true;
  }
  return false;
}

}  // namespace
}  // namespace detail

using detail::current;

const uint3& thread_index() { return current->index; }
const uint3& block_index() { return current->block->index; }
grid_runner* current_runner() noexcept { return current == nullptr ? nullptr : current->runner; }

namespace {
dim3 running_block;
dim3 running_grid;
}  // namespace
const dim3& block_dimensions() { return running_block; }
const dim3& grid_dimensions() { return running_grid; }

std::string launch_error(const grid_request& request, const grid_options& options) {
  const auto too_many = [](const char* what, std::uint64_t value, std::uint64_t limit) {
    return value > limit ? std::to_string(value) + " " + what + ", of at most " +
                               std::to_string(limit)
                         : std::string();
  };
  const dim3 g = request.grid;
  const dim3 b = request.block;
  if (g.x == 0 || g.y == 0 || g.z == 0) return "a grid without blocks";
  if (b.x == 0 || b.y == 0 || b.z == 0) return "a block without threads";
  for (const std::string& text :
       {too_many("threads in a block", std::uint64_t{b.x} * b.y * b.z, 1024),
        too_many("blocks along x", g.x, 0x7fffffff), too_many("blocks along y", g.y, 65535),
        too_many("blocks along z", g.z, 65535),
        too_many("bytes of shared memory", request.shared_bytes, options.shared_limit_bytes)}) {
    if (!text.empty()) return text;
  }
  return {};
}

grid_runner::grid_runner(fiber& home, const memory_map& memory, random_source& random,
                         const grid_options& options)
    : home_(&home), memory_(&memory), random_(&random), options_(options), ready_(1024) {}

grid_runner::~grid_runner() = default;

fault grid_runner::run(const grid_request& request) {
  const unchecked scope;
  const detail::signal_scope signals;
  request_ = &request;
  running_grid = request.grid;
  running_block = request.block;
  fault_ = {};
  ready_first_ = ready_count_ = 0;
  idle_polls_ = 0;
  ++counters_.kernels;
  poison_ = static_cast<unsigned char>(random_->below(2) == 0 ? nan_byte : random_->below(256));
  release(&begun_);

  const std::uint32_t total = request.grid.x * request.grid.y * request.grid.z;
  const std::uint32_t window = std::min(total, std::max(1U, options_.live_blocks));
  while (slots_.size() < window) slots_.push_back(std::make_unique<block_run>());
  // A stride that has no divisor in common with the number of blocks visits each once.
  std::uint32_t stride = 1;
  std::uint32_t first = 0;
  if (options_.shuffled && total > 1) {
    first = random_->below(total);
    do {
      stride = 1 + random_->below(total - 1);
    } while (std::gcd(stride, total) != 1);
  }
  std::uint32_t begun = 0;
  std::uint32_t under_way = 0;
  for (;;) {
    under_way = 0;
    for (std::uint32_t i = 0; i < window; ++i) {
      block_run& slot = *slots_[i];
      if (slot.live == 0 && begun < total) {
        start_block(static_cast<std::uint32_t>(
                        (first + std::uint64_t{stride} * begun) % total), slot);
        ++begun;
      }
      if (slot.live > 0) ++under_way;
    }
    if (under_way == 0) break;
    thread* const next = pop();
    if (next == nullptr) {
      fault_ = stuck();
    } else {
      current = next;
      {
        const checked kernel;
        next->context.resume_from(*home_);
      }
      current = nullptr;
    }
    if (fault_.kind != fault_kind::none) {
      for (auto& slot : slots_) slot->live = 0;
      break;
    }
  }
  acquire(&ended_);
  request_ = nullptr;
  return fault_;
}

void grid_runner::start_block(std::uint32_t number, block_run& slot) {
  ++counters_.blocks;
  const dim3 g = request_->grid;
  const dim3 b = request_->block;
  slot.index = uint3{number % g.x, number / g.x % g.y, number / (g.x * g.y)};
  slot.size = b.x * b.y * b.z;
  slot.live = slot.size;
  slot.waiting = 0;
  slot.phase = 0;
  slot.map(request_->shared_bytes);
  std::memset(slot.shared, poison_, slot.shared_bytes);
  slot.warps.assign((slot.size + 31) / 32, {});
  while (slot.threads.size() < slot.size) {
    slot.threads.push_back(
        std::make_unique<thread>(options_.thread_identities ? nullptr : home_));
  }
  const std::uint32_t turn = options_.shuffled ? random_->below(slot.size) : 0;
  for (std::uint32_t i = 0; i < slot.size; ++i) {
    const std::uint32_t id = (i + turn) % slot.size;
    thread& t = *slot.threads[id];
    t.index = uint3{id % b.x, id / b.x % b.y, id / (b.x * b.y)};
    t.lane = id % 32;
    t.warp = &slot.warps[id / 32];
    t.warp->lanes[t.lane] = &t;
    t.warp->members |= 1U << t.lane;
    t.block = &slot;
    t.runner = this;
    t.copies.clear();
    t.group_copies.clear();
    t.open_copies = 0;
    t.context.prepare(&thread_main, &t);
    push_back(&t);
  }
}

void grid_runner::thread_main(void* argument) {
  auto& me = *static_cast<thread*>(argument);
  grid_runner& runner = *me.runner;
  acquire(&runner.begun_);
  acquire(&me.block->handover);
  runner.request_->body();
  const unchecked scope;
  release(&me.block->handover);
  release(&runner.ended_);
  runner.finish_thread(me);
}

void grid_runner::finish_thread(thread& me) {
  block_run& b = *me.block;
  if (b.waiting > 0) {
    raise(fault_kind::divergent_barrier, "ends while other threads wait at the barrier in " +
                                             std::string(b.file) + ":" + std::to_string(b.line));
  }
  if (me.warp->arrived != 0 || (me.warp->in_sync != 0 && detail::waits_for(*me.warp, me.lane))) {
    raise(fault_kind::divergent_warp, "ends while other lanes of its warp wait for it");
  }
  me.warp->members &= ~(1U << me.lane);
  idle_polls_ = 0;
  --b.live;
  thread* const next = b.live == 0 ? nullptr : pop();
  current = next;
  // Scopes of this fiber never end: balance them for who runs on it next.
#if DYNCP_TSAN
  __tsan_ignore_thread_end();
#endif
  (next == nullptr ? *home_ : next->context).resume_from(me.context);
  std::abort();
}

grid_runner::thread* grid_runner::pop() {
  if (ready_count_ == 0) return nullptr;
  thread* const t = ready_[ready_first_];
  ready_first_ = (ready_first_ + 1) & (ready_.size() - 1);
  --ready_count_;
  return t;
}

void grid_runner::push_back(thread* t) {
  if (ready_count_ == ready_.size()) {
    std::rotate(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(ready_first_),
                ready_.end());
    ready_first_ = 0;
    ready_.resize(2 * ready_.size());
  }
  ready_[(ready_first_ + ready_count_) & (ready_.size() - 1)] = t;
  ++ready_count_;
}

void grid_runner::push_front(thread* t) {
  push_back(t);  // makes room
  --ready_count_;
  ready_first_ = (ready_first_ - 1) & (ready_.size() - 1);
  ready_[ready_first_] = t;
  ++ready_count_;
}

void grid_runner::run_next(thread& me) {
  thread* const next = pop();
  current = next;
  if (next == &me) return;
  const checked others;
  (next == nullptr ? *home_ : next->context).resume_from(me.context);
}

void grid_runner::meet(void* mine, void (*act)(void* const*)) {
  const unchecked scope;
  thread& me = *current;
  detail::warp_run& w = *me.warp;
  if (w.arrived == 0) {
    w.act = act;
  } else if (w.act != act) {
    raise(fault_kind::divergent_warp, "and other lanes of its warp do different things together");
  }
  w.brought[me.lane] = mine;
  w.arrived |= 1U << me.lane;
  if (w.arrived != 0xffffffffU) {
    run_next(me);
    return;
  }
  ++counters_.warp_meetings;
  idle_polls_ = 0;
  w.arrived = 0;
  act(w.brought);
  const std::uint64_t draw = options_.shuffled ? random_->next() : 0;
  const auto turn = static_cast<std::uint32_t>(draw & 31);
  const auto odd = static_cast<std::uint32_t>((draw >> 5 & 15) * 2 + 1);
  const bool at_once = (draw >> 9 & 7) != 0;
  for (std::uint32_t i = 0; i < 32; ++i) {
    thread* const t = w.lanes[(turn + odd * i) & 31];
    if (t == &me) continue;
    if (at_once) {
      push_front(t);
    } else {
      push_back(t);
    }
  }
}

void grid_runner::sync_block(const char* file, int line) {
  const unchecked scope;
  thread& me = *current;
  block_run& b = *me.block;
  const std::string site = std::string(file) + ":" + std::to_string(line);
  if (b.live != b.size) {
    raise(fault_kind::divergent_barrier, "waits at the barrier in " + site + " after " +
                                             std::to_string(b.size - b.live) +
                                             " threads of the block ended");
  }
  if (b.waiting == 0) {
    b.file = file;
    b.line = line;
  } else if (b.line != line || std::strcmp(b.file, file) != 0) {
    raise(fault_kind::divergent_barrier, "waits at the barrier in " + site +
                                             ", other threads of the block at the one in " +
                                             b.file + ":" + std::to_string(b.line));
  }
  const std::uint32_t side = b.phase & 1;
  release(&b.barrier[side]);
  if (++b.waiting < b.size) {
    run_next(me);
  } else {
    ++counters_.barriers;
    idle_polls_ = 0;
    b.waiting = 0;
    ++b.phase;
    const auto warps = static_cast<std::uint32_t>(b.warps.size());
    const std::uint64_t draw = options_.shuffled ? random_->next() : 0;
    const auto warp_turn = static_cast<std::uint32_t>((draw >> 32) % warps);
    const auto lane_turn = static_cast<std::uint32_t>(draw & 31);
    const bool backwards = (draw >> 5 & 1) != 0;
    for (std::uint32_t i = 0; i < warps; ++i) {
      const std::uint32_t j = (i + warp_turn) % warps;
      for (std::uint32_t l = 0; l < 32; ++l) {
        thread* const t = b.warps[backwards ? warps - 1 - j : j].lanes[(l + lane_turn) & 31];
        if (t != nullptr && t != &me) push_back(t);
      }
    }
    // The last to come is not always the first to go.
    if (options_.shuffled && (draw >> 6 & 1) != 0) {
      push_back(&me);
      run_next(me);
    }
  }
  acquire(&b.barrier[side]);
}

void grid_runner::sync_lanes(std::uint32_t lanes) {
  const unchecked scope;
  thread& me = *current;
  detail::warp_run& w = *me.warp;
  if ((lanes >> me.lane & 1U) == 0 || (lanes & ~w.members) != 0) {
    raise(fault_kind::divergent_warp,
          "waits in __syncwarp for lanes that ended, or not for itself");
  }
  for (std::uint32_t l = 0; l < 32; ++l) {
    if ((lanes & w.in_sync) >> l & 1U && w.sync_lanes[l] != lanes) {
      raise(fault_kind::divergent_warp, "waits in __syncwarp for a lane that waits for others");
    }
  }
  release(&w.synced);
  w.in_sync |= 1U << me.lane;
  w.sync_lanes[me.lane] = lanes;
  if ((w.in_sync & lanes) != lanes) {
    run_next(me);
  } else {
    idle_polls_ = 0;
    w.in_sync &= ~lanes;
    for (std::uint32_t l = 0; l < 32; ++l) {
      if (lanes >> l & 1U && l != me.lane) push_front(w.lanes[l]);
    }
  }
  acquire(&w.synced);
}

void grid_runner::spin() {
  const unchecked scope;
  ++counters_.polls;
  if (++idle_polls_ > detail::most_idle_polls) {
    raise(fault_kind::livelock, "polls for something that no thread will do");
  }
  push_back(current);
  run_next(*current);
}

void* grid_runner::shared_memory() { return current->block->shared; }

void* grid_runner::shared_at(std::uint32_t address, std::uint32_t bytes,
                             std::uint32_t alignment) {
  const block_run& b = *current->block;
  if (address > b.shared_bytes || bytes > b.shared_bytes - address) {
    const unchecked scope;
    raise(fault_kind::out_of_bounds, "accesses " + std::to_string(bytes) + " bytes at " +
                                         std::to_string(address) + " of " +
                                         std::to_string(b.shared_bytes) + " of shared memory");
  }
  char* const p = b.shared + address;
  check_aligned(p, alignment);
  return p;
}

void grid_runner::check_aligned(const void* p, std::uint32_t alignment) {
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(p) % alignment;
  if (beyond == 0) return;
  const unchecked scope;
  raise(fault_kind::misaligned, "accesses an address that is " + std::to_string(beyond) +
                                    " bytes beyond a multiple of " + std::to_string(alignment));
}

void grid_runner::copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid) {
  void* const target = shared_at(to, bytes, bytes);
  const unchecked scope;
  thread& me = *current;
  check_aligned(from, bytes);
  if (valid && memory_->find(from, bytes) == nullptr) raise_access(from);
  // From now on the copy may come any time: who still reads the place gets garbage.
  writes(target, bytes);
  std::memset(target, poison_, bytes);
  if (valid) reads(from, bytes);
  me.copies.push_back({target, from, bytes, valid});
  ++me.open_copies;
}

void grid_runner::commit_copies() {
  const unchecked scope;
  thread& me = *current;
  me.group_copies.push_back(me.open_copies);
  me.open_copies = 0;
}

void grid_runner::wait_copies(std::uint32_t pending) {
  const unchecked scope;
  thread& me = *current;
  const auto groups = static_cast<std::uint32_t>(me.group_copies.size());
  if (groups > pending) land(me, groups - pending);
}

void grid_runner::land(thread& me, std::uint32_t groups) {
  std::size_t n = 0;
  for (std::uint32_t i = 0; i < groups; ++i) n += me.group_copies[i];
  for (std::size_t i = 0; i < n; ++i) {
    const detail::pending_copy& c = me.copies[i];
    writes(c.to, c.bytes);
    if (c.valid) {
      reads(c.from, c.bytes);
      std::memcpy(c.to, c.from, c.bytes);
    } else {
      std::memset(c.to, 0, c.bytes);
    }
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(n));
  me.group_copies.erase(me.group_copies.begin(), me.group_copies.begin() + groups);
}

std::string grid_runner::where(const thread& t) const {
  const uint3 b = t.block->index;
  return "thread " + std::to_string(t.index.x) + " of block (" + std::to_string(b.x) + ", " +
         std::to_string(b.y) + ") ";
}

void grid_runner::raise(fault_kind kind, const std::string& what) {
  fault_ = {kind, where(*current) + what};
  thread& me = *current;
  current = nullptr;
#if DYNCP_TSAN
  __tsan_ignore_thread_end();
#endif
  home_->resume_from(me.context);
  std::abort();
}

void grid_runner::raise_access(const void* address) {
  thread& me = *current;
  if (me.context.is_overflow(address)) raise(fault_kind::out_of_bounds, "overflows its stack");
  for (const auto& slot : slots_) {
    const auto* const p = static_cast<const char*>(address);
    if (p >= slot->mapping && p < slot->mapping + slot->mapping_bytes) {
      raise(fault_kind::out_of_bounds, "accesses shared memory at " +
                                           std::to_string(p - slot->shared) + " of " +
                                           std::to_string(slot->shared_bytes));
    }
  }
  const std::string near = memory_->describe(address);
  raise(fault_kind::out_of_bounds,
        "accesses " + (near.empty() ? "memory that no GPU has" : near));
}

fault grid_runner::stuck() const {
  for (const auto& slot : slots_) {
    if (slot->live == 0) continue;
    if (slot->waiting > 0) {
      return {fault_kind::divergent_barrier,
              std::to_string(slot->waiting) + " of " + std::to_string(slot->size) +
                  " threads of a block wait at the barrier in " + slot->file + ":" +
                  std::to_string(slot->line) + ", the others never come"};
    }
    return {fault_kind::divergent_warp, "some lanes of a warp wait for others that never come"};
  }
  return {fault_kind::deadlock, "no thread of the kernel can go on"};
}

}  // namespace dyncp_emulation
