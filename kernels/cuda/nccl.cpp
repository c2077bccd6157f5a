#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

#include <type_traits>

#ifdef LLMB_SIMT
#include "kernels/simt/nccl.h"
#endif

namespace llmb::cuda {

namespace {

constexpr const char* kAdvice =
    "; several GPUs for one model need NCCL 2.18 or newer: install libnccl2, or put the folder of libnccl.so.2 on "
    "LD_LIBRARY_PATH";

// Calls visit(member of table, name) for each function until one is refused.
template <typename Visit>
bool visit_functions(Nccl* table, const Visit& visit) {
  return visit(&table->get_version, "ncclGetVersion") && visit(&table->get_error_string, "ncclGetErrorString") &&
         visit(&table->get_unique_id, "ncclGetUniqueId") && visit(&table->comm_init_rank, "ncclCommInitRank") &&
         visit(&table->comm_destroy, "ncclCommDestroy") && visit(&table->comm_abort, "ncclCommAbort") &&
         visit(&table->comm_get_async_error, "ncclCommGetAsyncError") && visit(&table->all_reduce, "ncclAllReduce") &&
         visit(&table->all_gather, "ncclAllGather") && visit(&table->broadcast, "ncclBroadcast") &&
         visit(&table->send, "ncclSend") && visit(&table->receive, "ncclRecv") &&
         visit(&table->group_start, "ncclGroupStart") && visit(&table->group_end, "ncclGroupEnd");
}

struct LoadedNccl {
  Nccl table{};
  std::string problem;
};

#ifdef LLMB_SIMT

LoadedNccl load_once() {
  namespace twin = ::llmb::simt;
  LoadedNccl loaded;
  Nccl& n = loaded.table;
  n.get_version = [](int* version) { return *version = kOldestNccl, kNcclSuccess; };
  n.get_error_string = twin::nccl_error_string;
  n.get_unique_id = [](NcclUniqueId* id) { return twin::nccl_unique_id(id->bytes); };
  n.comm_init_rank = [](NcclComm* comm, int size, NcclUniqueId id, int rank) {
    return twin::nccl_init_rank(comm, size, id.bytes, rank);
  };
  n.comm_destroy = twin::nccl_destroy;
  n.comm_abort = twin::nccl_abort;
  n.comm_get_async_error = twin::nccl_async_error;
  n.all_reduce = [](const void* from, void* to, size_t count, NcclType type, NcclSum, NcclComm comm,
                    cudaStream_t stream) {
    return twin::nccl_all_reduce(from, to, count, static_cast<int>(type), comm, stream);
  };
  n.all_gather = [](const void* from, void* to, size_t count, NcclType type, NcclComm comm, cudaStream_t stream) {
    return twin::nccl_all_gather(from, to, count, static_cast<int>(type), comm, stream);
  };
  n.broadcast = [](const void* from, void* to, size_t count, NcclType type, int root, NcclComm comm,
                   cudaStream_t stream) {
    return twin::nccl_broadcast(from, to, count, static_cast<int>(type), root, comm, stream);
  };
  n.send = [](const void* from, size_t count, NcclType type, int peer, NcclComm comm, cudaStream_t stream) {
    return twin::nccl_send(from, count, static_cast<int>(type), peer, comm, stream);
  };
  n.receive = [](void* to, size_t count, NcclType type, int peer, NcclComm comm, cudaStream_t stream) {
    return twin::nccl_receive(to, count, static_cast<int>(type), peer, comm, stream);
  };
  n.group_start = twin::nccl_group_start;
  n.group_end = twin::nccl_group_end;
  return loaded;
}

#else

LoadedNccl load_once() {
  LoadedNccl loaded;
  loaded.problem = load_nccl("libnccl.so.2", &loaded.table);
  return loaded;
}

#endif

const LoadedNccl& loaded_nccl() {
  static const LoadedNccl instance = load_once();
  return instance;
}

}  // namespace

std::string load_nccl(const char* file, Nccl* out) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::string("NCCL cannot be loaded: ") + dlerror() + kAdvice;
  std::string problem;
  visit_functions(out, [&](auto* function, const char* name) {
    void* const address = dlsym(handle, name);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
    if (address == nullptr) problem = std::string("NCCL cannot be used: ") + file + " has no " + name + kAdvice;
    return address != nullptr;
  });
  int version = 0;
  if (problem.empty() && out->get_version(&version) != kNcclSuccess)
    return std::string("NCCL cannot be used: ") + file + " does not say its version";
  return problem.empty() ? nccl_version_problem(version) : problem;
}

std::string nccl_version_problem(int version) {
  if (version >= kOldestNccl) return "";
  // Before 2.9 a version had four digits.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return "NCCL " + std::to_string(major) + "." + std::to_string(minor) + " is too old" + kAdvice;
}

const std::string& nccl_problem() { return loaded_nccl().problem; }

const Nccl& nccl() {
  const LoadedNccl& loaded = loaded_nccl();
  if (!loaded.problem.empty()) throw CudaError(cudaErrorNotSupported, loaded.problem);
  return loaded.table;
}

}  // namespace llmb::cuda
