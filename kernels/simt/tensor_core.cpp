#include <bit>
#include <cstring>

#include "kernels/simt/float16.h"
#include "kernels/simt/ptx.h"
#include "kernels/simt/ptx_sparse.h"

namespace llmb::cuda::ptx::detail {

namespace {

using ::llmb::simt::Site;

constexpr uint32_t kFullWarp = 0xFFFFFFFFu;

void check_full_warp(uint32_t mask, const char* what) {
  if (mask != kFullWarp) ::llmb::simt::fault(std::string(what) + " needs all 32 lanes");
}

struct LdMatrix {
  uint32_t* registers;
  const void* row;
  int num_matrices;
  bool transposed;
};

// Lane l gives row l % 8 of matrix l / 8, 8 elements of 16 bits, and gets elements (l / 4, 2 * (l % 4)) and the next.
void load_matrices(uint32_t mask, void* const* arguments) {
  check_full_warp(mask, "ldmatrix");
  const LdMatrix& first = *static_cast<const LdMatrix*>(arguments[0]);
  uint32_t results[32][4];
  for (int matrix = 0; matrix < first.num_matrices; ++matrix) {
    uint16_t elements[8][8];
    for (int row = 0; row < 8; ++row) {
      const void* address = static_cast<const LdMatrix*>(arguments[matrix * 8 + row])->row;
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        ::llmb::simt::fault("ldmatrix: a row is not aligned to 16 bytes");
      std::memcpy(elements[row], address, 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4;
      const int column = lane % 4 * 2;
      const uint32_t low = first.transposed ? elements[column][row] : elements[row][column];
      const uint32_t high = first.transposed ? elements[column + 1][row] : elements[row][column + 1];
      results[lane][matrix] = low | high << 16;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const LdMatrix& to = *static_cast<const LdMatrix*>(arguments[lane]);
    if (to.num_matrices != first.num_matrices || to.transposed != first.transposed) {
      ::llmb::simt::fault("the lanes of a warp execute different forms of ldmatrix");
    }
    std::memcpy(to.registers, results[lane], sizeof(uint32_t) * static_cast<size_t>(first.num_matrices));
  }
}

struct StMatrix {
  void* column;
  const uint32_t* registers;
};

void store_matrices(uint32_t mask, void* const* arguments) {
  check_full_warp(mask, "stmatrix");
  for (int lane = 0; lane < 32; ++lane) {
    const StMatrix& to = *static_cast<const StMatrix*>(arguments[lane]);
    if (reinterpret_cast<uintptr_t>(to.column) % 16 != 0)
      ::llmb::simt::fault("stmatrix: a row is not aligned to 16 bytes");
    uint16_t elements[8];  // of column lane % 8 of matrix lane / 8
    for (int row = 0; row < 8; ++row) {
      const StMatrix& from = *static_cast<const StMatrix*>(arguments[row * 4 + lane % 8 / 2]);
      elements[row] = static_cast<uint16_t>(from.registers[lane / 8] >> (16 * (lane % 2)));
    }
    std::memcpy(to.column, elements, sizeof(elements));
  }
}

template <class T>
float value_of(uint32_t packed, int half) {
  const uint16_t bits = static_cast<uint16_t>(packed >> (16 * half));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return ::llmb::simt::bfloat16_value(bits);
  else return ::llmb::simt::half_value(bits);
}

struct Mma {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// PTX ISA, "Matrix Fragments for mma.m16n8k16": where each lane's registers lie in A [16,16], B [16,8] and D [16,8].
template <class T>
void multiply(uint32_t mask, void* const* arguments) {
  check_full_warp(mask, "mma_m16n8k16");
  float a[16][16];
  float b[16][8];
  float d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Mma& from = *static_cast<const Mma*>(arguments[lane]);
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      a[group][pair + i] = value_of<T>(from.a[0], i);
      a[group + 8][pair + i] = value_of<T>(from.a[1], i);
      a[group][pair + 8 + i] = value_of<T>(from.a[2], i);
      a[group + 8][pair + 8 + i] = value_of<T>(from.a[3], i);
      b[pair + i][group] = value_of<T>(from.b[0], i);
      b[pair + 8 + i][group] = value_of<T>(from.b[1], i);
      d[group][pair + i] = from.d[i];
      d[group + 8][pair + i] = from.d[2 + i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* to = static_cast<const Mma*>(arguments[lane])->d;
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      to[i] = d[group][pair + i];
      to[2 + i] = d[group + 8][pair + i];
    }
  }
}

struct Int8Mma {
  int32_t* d;
  const uint32_t* a;
  const uint32_t* b;
};

// PTX ISA, "Matrix Fragments for mma.m16n8k32": as for m16n8k16, four numbers in each word.
void multiply_int8(uint32_t mask, void* const* arguments) {
  check_full_warp(mask, "mma_m16n8k32_int8");
  int32_t a[16][32];
  int32_t b[32][8];
  int32_t d[16][8];
  const auto number = [](uint32_t word, int i) { return int32_t{static_cast<int8_t>(word >> (8 * i))}; };
  for (int lane = 0; lane < 32; ++lane) {
    const Int8Mma& from = *static_cast<const Int8Mma*>(arguments[lane]);
    const int group = lane / 4;
    const int first = lane % 4 * 4;
    for (int i = 0; i < 4; ++i) {
      a[group][first + i] = number(from.a[0], i);
      a[group + 8][first + i] = number(from.a[1], i);
      a[group][first + 16 + i] = number(from.a[2], i);
      a[group + 8][first + 16 + i] = number(from.a[3], i);
      b[first + i][group] = number(from.b[0], i);
      b[first + 16 + i][group] = number(from.b[1], i);
    }
    for (int i = 0; i < 2; ++i) {
      d[group][lane % 4 * 2 + i] = from.d[i];
      d[group + 8][lane % 4 * 2 + i] = from.d[2 + i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 32; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    int32_t* to = static_cast<const Int8Mma*>(arguments[lane])->d;
    for (int i = 0; i < 4; ++i) to[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

struct SparseMma {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  uint32_t places;
  int selector;
};

// PTX ISA, "Matrix Fragments for sparse mma.m16n8k32 with .f16 and .bf16 types": A [16,32] of which 16 numbers a row
// are there, B [32,8] as two of m16n8k16, D as there.
template <class T>
void multiply_sparse(uint32_t mask, void* const* arguments) {
  check_full_warp(mask, "mma_sp_m16n8k32");
  const auto of_lane = [&](int lane) -> const SparseMma& { return *static_cast<const SparseMma*>(arguments[lane]); };
  float b[32][8];
  float d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const SparseMma& from = of_lane(lane);
    if (from.selector != of_lane(0).selector)
      ::llmb::simt::fault("the lanes of a warp execute different forms of mma_sp_m16n8k32");
    for (int word = 0; word < 4; ++word)
      for (int i = 0; i < 2; ++i) b[word * 8 + lane % 4 * 2 + i][lane / 4] = value_of<T>(from.b[word], i);
    for (int i = 0; i < 4; ++i) d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = from.d[i];
  }
  for (int row = 0; row < 16; ++row) {
    const int group = row % 8, high = row / 8;
    for (int four = 0; four < 8; ++four) {  // of the 32 k
      const uint32_t word = of_lane(4 * group + 2 * of_lane(0).selector + four / 4).places;
      const uint32_t bits = word >> (16 * high + four % 4 * 4);
      const uint32_t places[2] = {bits & 3, bits >> 2 & 3};
      if (places[0] >= places[1]) ::llmb::simt::fault("mma_sp_m16n8k32: the places of two numbers are not in order");
      const uint32_t numbers = of_lane(4 * group + four % 4).a[four / 4 * 2 + high];
      for (int i = 0; i < 2; ++i) {
        const float a = value_of<T>(numbers, i);
        for (int column = 0; column < 8; ++column)
          d[row][column] += a * b[four * 4 + static_cast<int>(places[i])][column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) of_lane(lane).d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

}  // namespace

void ldmatrix(uint32_t* registers, int num_matrices, bool transposed, const void* row, const char* file, int line) {
  LdMatrix argument{registers, row, num_matrices, transposed};
  ::llmb::simt::warp_collective(kFullWarp, load_matrices, &argument, {"ldmatrix", file, line});
}

void stmatrix_trans(void* column, const uint32_t (&registers)[4], const char* file, int line) {
  StMatrix argument{column, registers};
  ::llmb::simt::warp_collective(kFullWarp, store_matrices, &argument, {"stmatrix", file, line});
}

template <class T>
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, const char* file, int line) {
  Mma argument{d, a, b};
  ::llmb::simt::warp_collective(kFullWarp, multiply<T>, &argument, {"mma_m16n8k16", file, line});
}

void mma_m16n8k32_int8(int32_t* d, const uint32_t* a, const uint32_t* b, const char* file, int line) {
  Int8Mma argument{d, a, b};
  ::llmb::simt::warp_collective(kFullWarp, multiply_int8, &argument, {"mma_m16n8k32_int8", file, line});
}

template <class T>
void mma_sp_m16n8k32(float* d, const uint32_t* a, const uint32_t* b, uint32_t places, int selector, const char* file,
                     int line) {
  SparseMma argument{d, a, b, places, selector};
  ::llmb::simt::warp_collective(kFullWarp, multiply_sparse<T>, &argument, {"mma_sp_m16n8k32", file, line});
}

template void mma_m16n8k16<__nv_bfloat16>(float*, const uint32_t*, const uint32_t*, const char*, int);
template void mma_m16n8k16<__half>(float*, const uint32_t*, const uint32_t*, const char*, int);
template void mma_sp_m16n8k32<__nv_bfloat16>(float*, const uint32_t*, const uint32_t*, uint32_t, int, const char*, int);
template void mma_sp_m16n8k32<__half>(float*, const uint32_t*, const uint32_t*, uint32_t, int, const char*, int);

}  // namespace llmb::cuda::ptx::detail
