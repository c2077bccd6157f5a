#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

namespace {

// Calls visit(member of table, name) for each function until one is refused.
template <typename Visit>
bool visit_all(CublasLt* table, const Visit& visit) {
  return visit(&table->get_status_name, "cublasLtGetStatusName") && visit(&table->create, "cublasLtCreate") &&
         visit(&table->destroy, "cublasLtDestroy") && visit(&table->matmul_desc_create, "cublasLtMatmulDescCreate") &&
         visit(&table->matmul_desc_destroy, "cublasLtMatmulDescDestroy") &&
         visit(&table->matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute") &&
         visit(&table->matrix_layout_create, "cublasLtMatrixLayoutCreate") &&
         visit(&table->matrix_layout_destroy, "cublasLtMatrixLayoutDestroy") &&
         visit(&table->matmul_preference_create, "cublasLtMatmulPreferenceCreate") &&
         visit(&table->matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
         visit(&table->matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute") &&
         visit(&table->matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
         visit(&table->matmul, "cublasLtMatmul");
}

struct Library {
  CublasLt table{};
  std::string problem;
};

#ifdef LLMB_SIMT

Library load() {
  return {{cublasLtGetStatusName, cublasLtCreate, cublasLtDestroy, cublasLtMatmulDescCreate, cublasLtMatmulDescDestroy,
           cublasLtMatmulDescSetAttribute, cublasLtMatrixLayoutCreate, cublasLtMatrixLayoutDestroy,
           cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreferenceSetAttribute,
           cublasLtMatmulAlgoGetHeuristic, cublasLtMatmul},
          ""};
}

#else

Library load() {
  // The version that the headers are of: others may have other structures.
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  Library library;
  library.problem = load_cublas_lt(file.c_str(), &library.table);
  return library;
}

#endif

const Library& library() {
  static const Library instance = load();
  return instance;
}

}  // namespace

std::string load_cublas_lt(const char* file, CublasLt* out) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::string("cuBLAS cannot be loaded: ") + dlerror();
  std::string problem;
  visit_all(out, [&](auto* function, const char* name) {
    void* const address = dlsym(handle, name);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
    if (address == nullptr) problem = std::string("cuBLAS cannot be used: ") + file + " has no " + name;
    return address != nullptr;
  });
  return problem;
}

const std::string& cublas_lt_problem() { return library().problem; }

const CublasLt& cublas_lt() {
  const Library& loaded = library();
  if (!loaded.problem.empty()) throw CudaError(cudaErrorNotSupported, loaded.problem);
  return loaded.table;
}

}  // namespace llmb::cuda
