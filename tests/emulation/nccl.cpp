// SPDX-License-Identifier: Apache-2.0
// NCCL as far as the library uses it, between the ranks of the emulated world. Stricter than the
// real one: what that answers with undefined behaviour is a named error here. Communicators do
// their work in the background, on fibers of their own, as nonblocking ones do.
#include "emulation/free_memory.hpp"
#include "emulation/nccl_ledger.hpp"
#include "emulation/sanitizers.hpp"
#include "emulation/world.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using dyncp_emulation::emulated_stream;
using dyncp_emulation::fault_kind;
using dyncp_emulation::ledger_of_nccl;
using dyncp_emulation::memory_kind;
using dyncp_emulation::unchecked;
using dyncp_emulation::world;

// What a communicator and a connection take of a GPU's memory.
constexpr std::size_t communicator_bytes = std::size_t{4} << 20;
constexpr std::size_t connection_bytes = std::size_t{1} << 20;

struct comm_state;

struct posted {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
  bool cancelled = false;
  char sent = 0;  // for the thread sanitizer
  char read = 0;
};

/// The members of a communicator, and what is between them.
struct clique {
  explicit clique(std::size_t n) : size(static_cast<int>(n)), members(n), come(n, false) {}

  int size = 0;
  std::vector<std::weak_ptr<comm_state>> members;
  std::vector<bool> come;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<posted>>> boxes;  // (from, to)
  std::set<std::pair<int, int>> sender_ready;    // connections, (from, to)
  std::set<std::pair<int, int>> receiver_ready;
  struct split_call {
    int color = 0;
    int key = 0;
    bool called = false;
  };
  std::deque<std::vector<split_call>> splits;  // by number, (size)
  std::map<std::pair<std::size_t, int>, std::shared_ptr<clique>> children;  // (split, color)

  [[nodiscard]] bool complete() const {
    return std::all_of(come.begin(), come.end(), [](bool c) { return c; });
  }
};

struct comm_state {
  std::shared_ptr<clique> group;
  int rank = 0;
  int device = 0;
  int owner = 0;  // rank of the world
  bool blocking = true;
  bool aborted = false;
  int busy = 0;       // calls that go on in the background
  int in_flight = 0;  // operations on streams
  std::size_t splits = 0;
  ncclResult_t error = ncclSuccess;
  std::string text;
  std::size_t bytes = 0;
  emulated_stream* proxy = nullptr;

  [[nodiscard]] bool ended() const;
};

struct pending_operation {
  std::shared_ptr<comm_state> comm;
  bool send = false;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  emulated_stream* stream = nullptr;
};
struct open_group {
  int depth = 0;
  std::vector<ncclComm*> aborted;
  ncclResult_t error = ncclSuccess;
  std::vector<pending_operation> operations;
};

struct registry {
  std::uint64_t ids = 0;
  std::uint64_t era = 0;
  std::map<std::string, std::shared_ptr<clique>> meeting;  // by id, until all have come
  std::map<int, open_group> groups;                        // by rank of the world
  std::vector<std::weak_ptr<comm_state>> communicators;
};
registry& all() {
  static registry r;
  if (r.era != ledger_of_nccl().era) {
    r.meeting.clear();
    r.groups.clear();
    r.communicators.clear();
    r.era = ledger_of_nccl().era;
  }
  return r;
}

bool comm_state::ended() const { return aborted || ledger_of_nccl().dead.count(owner) != 0; }

ncclResult_t misused(const std::string& text, ncclResult_t code = ncclInvalidUsage) {
  if (ledger_of_nccl().misuse.empty()) ledger_of_nccl().misuse = text;
  return code;
}

bool broken() {
  return world::current() == nullptr || world::current()->first_fault().kind != fault_kind::none;
}

void take_memory(comm_state& c, std::size_t bytes) {
  c.bytes += bytes;
  dyncp_emulation::library_bytes(c.device) += bytes;
}
void give_memory(comm_state& c) {
  dyncp_emulation::library_bytes(c.device) -= c.bytes;
  c.bytes = 0;
}

void set_error(comm_state& c, ncclResult_t code, const std::string& text) {
  if (c.error != ncclSuccess) return;
  c.error = code;
  c.text = text;
}

std::string name(const comm_state& c) {
  return "rank " + std::to_string(c.rank) + " of " + std::to_string(c.group->size);
}

}  // namespace

struct ncclComm {
  std::shared_ptr<comm_state> state;
};

namespace {

/// Runs `work` in the background; the communicator is busy until then.
ncclResult_t begin(const std::shared_ptr<comm_state>& c, std::function<void()> work) {
  ++c->busy;
  world::current()->enqueue(c->proxy, [c, work = std::move(work)] {
    const unchecked scope;
    work();
    --c->busy;
  });
  if (!c->blocking) return ncclInProgress;
  static_cast<void>(world::current()->wait_until([c] { return c->busy == 0 || broken(); }));
  return broken() ? ncclUnhandledCudaError : c->error;
}

/// What every call but those that ask and those that abort need.
ncclResult_t check(const ncclComm* comm, const char* call) {
  if (broken()) return ncclUnhandledCudaError;
  if (comm == nullptr) return misused(std::string(call) + " without a communicator",
                                      ncclInvalidArgument);
  const comm_state& c = *comm->state;
  if (c.owner != world::current()->rank()) {
    return misused(std::string(call) + " by rank " + std::to_string(world::current()->rank()) +
                   " on a communicator of rank " + std::to_string(c.owner));
  }
  if (c.busy > 0) {
    return misused(std::string(call) + " by " + name(c) + " while a call before it is in progress",
                   ncclInvalidArgument);
  }
  return c.error;
}

ncclComm* make(const std::shared_ptr<clique>& group, int rank, bool blocking) {
  auto c = std::make_shared<comm_state>();
  c->group = group;
  c->rank = rank;
  c->device = world::current()->current_device();
  c->owner = world::current()->rank();
  c->blocking = blocking;
  c->proxy = world::current()->open_stream(c->device);
  all().communicators.push_back(c);
  ++ledger_of_nccl().live;
  return new ncclComm{c};
}

/// A communicator of GPU `device` that nobody has aborted and that has operations on streams.
std::shared_ptr<comm_state> at_work(int device) {
  for (const auto& weak : all().communicators) {
    const auto c = weak.lock();
    if (c != nullptr && c->device == device && !c->ended() && c->in_flight > 0) return c;
  }
  return nullptr;
}

void dispose(ncclComm* comm) {
  give_memory(*comm->state);
  world::current()->close_stream(comm->state->proxy);
  --ledger_of_nccl().live;
  delete comm;
}

/// Joins `group` and waits for the others.
void join(const std::shared_ptr<comm_state>& c) {
  clique& group = *c->group;
  group.members[static_cast<std::size_t>(c->rank)] = c;
  group.come[static_cast<std::size_t>(c->rank)] = true;
  static_cast<void>(world::current()->wait_until(
      [&] { return group.complete() || c->ended() || broken(); }));
  if (!group.complete()) return;
  for (const auto& member : group.members) {
    const auto other = member.lock();
    if (other != nullptr && other != c && other->device == c->device) {
      set_error(*c, ncclInvalidUsage, "Duplicate GPU detected: " + name(*c) + " and rank " +
                                          std::to_string(other->rank) + " both on GPU " +
                                          std::to_string(c->device));
    }
  }
  take_memory(*c, communicator_bytes);
}

bool is_memory(const void* p, std::size_t bytes) {
  const auto* const block = world::current()->memory().find(p, bytes);
  return block != nullptr && block->kind == memory_kind::device && !block->freed;
}

/// One group of messages on its stream: what a kernel of NCCL does.
void transfer(const std::vector<pending_operation>& operations) {
  const unchecked scope;
  const std::shared_ptr<comm_state> c = operations.front().comm;
  clique& group = *c->group;
  std::vector<std::shared_ptr<posted>> sent;
  std::vector<const pending_operation*> receives;
  for (const pending_operation& o : operations) {
    if (!is_memory(o.data, o.bytes)) {
      world::current()->report(fault_kind::invalid_copy,
                               "NCCL: " + name(*c) + (o.send ? " sends from" : " receives into") +
                                   " memory that is not there");
      return;
    }
    if (!o.send) {
      receives.push_back(&o);
      continue;
    }
    auto message = std::make_shared<posted>();
    message->data = o.data;
    message->bytes = o.bytes;
    dyncp_emulation::release(&message->sent);
    group.boxes[{c->rank, o.peer}].push_back(message);
    sent.push_back(message);
  }
  const auto front = [&](int peer) -> posted* {
    auto& box = group.boxes[{peer, c->rank}];
    if (box.empty() || box.front()->cancelled) return nullptr;
    return box.front().get();
  };
  const auto over = [&] { return c->ended() || c->error != ncclSuccess || broken(); };
  while (!over()) {
    const bool progress = world::current()->wait_until([&] {
      return over() ||
             std::any_of(receives.begin(), receives.end(),
                         [&](const auto* r) { return front(r->peer) != nullptr; }) ||
             (receives.empty() && std::all_of(sent.begin(), sent.end(),
                                              [](const auto& m) { return m->taken; }));
    });
    if (!progress || over()) break;
    if (receives.empty()) break;
    std::vector<std::size_t> able;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      if (front(receives[i]->peer) != nullptr) able.push_back(i);
    }
    const std::size_t chosen = able[world::current()->random().below(
        static_cast<std::uint32_t>(able.size()))];
    const pending_operation& r = *receives[chosen];
    posted& message = *front(r.peer);
    if (message.bytes != r.bytes) {
      const std::string text = "rank " + std::to_string(r.peer) + " sends " +
                               std::to_string(message.bytes) + " bytes where " +
                               std::to_string(r.bytes) + " are expected by " + name(*c);
      misused(text);
      for (const auto& member : group.members) {
        if (const auto m = member.lock()) set_error(*m, ncclInvalidUsage, text);
      }
      break;
    }
    if (!is_memory(message.data, message.bytes)) {
      world::current()->report(fault_kind::invalid_copy,
                               "NCCL: the memory of a message was freed before it was taken");
      return;
    }
    dyncp_emulation::acquire(&message.sent);
    dyncp_emulation::reads(message.data, message.bytes);
    dyncp_emulation::writes(r.data, r.bytes);
    std::memcpy(r.data, message.data, message.bytes);
    dyncp_emulation::release(&message.read);
    message.taken = true;
    group.boxes[{r.peer, c->rank}].pop_front();
    receives.erase(receives.begin() + static_cast<std::ptrdiff_t>(chosen));
    world::current()->yield();
  }
  for (const auto& message : sent) {
    if (message->taken) {
      dyncp_emulation::acquire(&message->read);
    } else {
      message->cancelled = true;
    }
  }
  --c->in_flight;
}

/// The background part of a group: connects new peers, which both ends have to come to, then
/// launches.
void launch_group(const std::vector<pending_operation>& operations) {
  const std::shared_ptr<comm_state> c = operations.front().comm;
  clique& group = *c->group;
  std::vector<std::pair<int, int>> fresh;
  for (const pending_operation& o : operations) {
    const auto pair = o.send ? std::pair(c->rank, o.peer) : std::pair(o.peer, c->rank);
    auto& mine = o.send ? group.sender_ready : group.receiver_ready;
    if (mine.insert(pair).second) {
      fresh.push_back(pair);
      take_memory(*c, connection_bytes);
    }
  }
  static_cast<void>(world::current()->wait_until([&] {
    return c->ended() || broken() ||
           std::all_of(fresh.begin(), fresh.end(), [&](const auto& pair) {
             return group.sender_ready.count(pair) != 0 && group.receiver_ready.count(pair) != 0;
           });
  }));
  if (c->ended() || broken()) {
    --c->in_flight;
    return;
  }
  world::current()->enqueue(operations.front().stream,
                            [operations] { transfer(operations); });
}

ncclResult_t add_operation(bool send, void* data, std::size_t count, ncclDataType_t type, int peer,
                           ncclComm* comm, cudaStream_t stream) {
  const unchecked scope;
  const char* const call = send ? "ncclSend" : "ncclRecv";
  if (const ncclResult_t bad = check(comm, call); bad != ncclSuccess) return bad;
  open_group& group = all().groups[world::current()->rank()];
  const auto refuse = [&](const std::string& text) {
    group.error = ncclInvalidArgument;
    return misused(std::string(call) + ": " + text, ncclInvalidArgument);
  };
  const comm_state& c = *comm->state;
  auto* const s = reinterpret_cast<emulated_stream*>(stream);
  if (group.depth == 0) return refuse("outside of a group");
  if (type != ncclInt8) return refuse("elements that are no bytes");
  if (peer < 0 || peer >= c.group->size || peer == c.rank) {
    return refuse("peer " + std::to_string(peer) + " of " + std::to_string(c.group->size));
  }
  if (!world::current()->is_stream(s) || s->device() != c.device ||
      world::current()->current_device() != c.device) {
    return refuse("a stream or current device that is not the communicator's");
  }
  group.operations.push_back({comm->state, send, data, count, peer, s});
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const unchecked scope;
  if (broken()) return ncclUnhandledCudaError;
  std::memset(id, 0, sizeof *id);
  const std::uint64_t number = ++all().ids;
  std::memcpy(id, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const unchecked scope;
  if (broken()) return ncclUnhandledCudaError;
  const std::string key(id.internal, sizeof id);
  auto& group = all().meeting[key];
  if (group == nullptr) {
    group = std::make_shared<clique>(static_cast<std::size_t>(size));
  }
  if (group->size != size || rank < 0 || rank >= size ||
      group->come[static_cast<std::size_t>(rank)]) {
    return misused("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                       " where others are " + std::to_string(group->size),
                   ncclInvalidArgument);
  }
  *comm = make(group, rank, config->blocking != 0);
  const auto c = (*comm)->state;
  return begin(c, [c, key] {
    join(c);
    all().meeting.erase(key);
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  const unchecked scope;
  if (const ncclResult_t bad = check(comm, "ncclCommSplit"); bad != ncclSuccess) return bad;
  const auto parent = comm->state;
  if (parent->in_flight > 0) {
    return misused("ncclCommSplit by " + name(*parent) + " with operations in flight");
  }
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return misused("a negative color");
  const std::size_t number = parent->splits++;
  const bool blocking = config->blocking != 0;
  const int device = parent->device;
  const int owner = parent->owner;
  *child = nullptr;
  return begin(parent, [=] {
    clique& group = *parent->group;
    while (group.splits.size() <= number) {
      group.splits.emplace_back(static_cast<std::size_t>(group.size));
    }
    auto& calls = group.splits[number];
    calls[static_cast<std::size_t>(parent->rank)] = {color, key, true};
    static_cast<void>(world::current()->wait_until([&] {
      return parent->ended() || broken() ||
             std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c.called; });
    }));
    if (parent->ended() || broken() || color == NCCL_SPLIT_NOCOLOR) return;
    std::vector<int> members;
    for (int r = 0; r < group.size; ++r) {
      if (calls[static_cast<std::size_t>(r)].color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return calls[static_cast<std::size_t>(a)].key < calls[static_cast<std::size_t>(b)].key;
    });
    auto& made = group.children[{number, color}];
    if (made == nullptr) {
      made = std::make_shared<clique>(members.size());
    }
    const auto place = std::find(members.begin(), members.end(), parent->rank);
    auto c = std::make_shared<comm_state>();
    c->group = made;
    c->rank = static_cast<int>(place - members.begin());
    c->device = device;
    c->owner = owner;
    c->blocking = blocking;
    c->proxy = world::current()->open_stream(device);
    all().communicators.push_back(c);
    ++ledger_of_nccl().live;
    *child = new ncclComm{c};
    ++c->busy;
    world::current()->enqueue(c->proxy, [c] {
      const unchecked inner;
      join(c);
      --c->busy;
    });
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const unchecked scope;
  if (const ncclResult_t bad = check(comm, "ncclCommFinalize"); bad != ncclSuccess) return bad;
  const auto c = comm->state;
  return begin(c, [c] {
    static_cast<void>(world::current()->wait_until(
        [&] { return c->in_flight == 0 || c->ended() || broken(); }));
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const unchecked scope;
  if (const ncclResult_t bad = check(comm, "ncclCommDestroy"); bad != ncclSuccess) return bad;
  if (comm->state->in_flight > 0) {
    return misused("ncclCommDestroy by " + name(*comm->state) + " with operations in flight");
  }
  dispose(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const unchecked scope;
  if (world::current() == nullptr || comm == nullptr) return ncclInvalidArgument;
  comm->state->aborted = true;
  if (open_group& group = all().groups[world::current()->rank()]; group.depth > 0) {
    group.aborted.push_back(comm);
    return ncclSuccess;
  }
  // The real one hangs, or not: it depends on the version, and on what it has to free.
  const auto other = at_work(comm->state->device);
  dispose(comm);
  return other == nullptr ? ncclSuccess
                          : misused("ncclCommAbort outside of a group while " + name(*other) +
                                    " of another communicator is at work on the GPU");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const unchecked scope;
  *state = ncclSuccess;
  if (comm == nullptr) return misused("ncclCommGetAsyncError without a communicator",
                                      ncclInvalidArgument);
  world::current()->yield();
  if (broken()) return ncclUnhandledCudaError;
  *state = comm->state->error != ncclSuccess ? comm->state->error
           : comm->state->busy > 0           ? ncclInProgress
                                             : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "an error";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr && !comm->state->text.empty()) return comm->state->text.c_str();
  return ledger_of_nccl().misuse.c_str();
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->state->group->size;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->state->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->rank;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add_operation(true, const_cast<void*>(data), count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_operation(false, data, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart() {
  const unchecked scope;
  if (broken()) return ncclUnhandledCudaError;
  ++all().groups[world::current()->rank()].depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const unchecked scope;
  if (world::current() == nullptr) return ncclUnhandledCudaError;
  open_group& group = all().groups[world::current()->rank()];
  if (group.depth == 1) {
    // Memory is freed, which waits for all that the GPU does.
    for (ncclComm* const comm : std::exchange(group.aborted, {})) {
      const int device = comm->state->device;
      static_cast<void>(world::current()->wait_until(
          [device] { return at_work(device) == nullptr || broken(); }));
      dispose(comm);
    }
  }
  if (broken()) return ncclUnhandledCudaError;
  if (group.depth == 0) return misused("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  std::vector<pending_operation> operations = std::move(group.operations);
  const ncclResult_t error = std::exchange(group.error, ncclSuccess);
  group.operations.clear();
  if (error != ncclSuccess) return error;
  if (operations.empty()) return ncclSuccess;
  for (const pending_operation& o : operations) {
    if (o.comm != operations.front().comm || o.stream != operations.front().stream) {
      return misused("a group over several communicators or streams");
    }
  }
  const auto c = operations.front().comm;
  ++c->in_flight;
  return begin(c, [operations = std::move(operations)] { launch_group(operations); });
}

}  // extern "C"
