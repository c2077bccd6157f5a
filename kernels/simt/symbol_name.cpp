#include "kernels/simt/symbol_name.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

namespace llmb::simt {

namespace {

uintptr_t load_address() {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &base);
  return base;
}

template <class T>
std::vector<T> read_table(std::ifstream& file, uint64_t offset, uint64_t num_bytes) {
  std::vector<T> table(num_bytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(table.data()), static_cast<std::streamsize>(table.size() * sizeof(T)));
  return table;
}

std::string mangled_name(uintptr_t address) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto header = read_table<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr)).at(0);
  const auto sections = read_table<Elf64_Shdr>(file, header.e_shoff, sizeof(Elf64_Shdr) * header.e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr& strings = sections.at(section.sh_link);
    const auto names = read_table<char>(file, strings.sh_offset, strings.sh_size);
    for (const Elf64_Sym& symbol : read_table<Elf64_Sym>(file, section.sh_offset, section.sh_size)) {
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value == address) return &names.at(symbol.st_name);
    }
  }
  return "";
}

}  // namespace

std::string symbol_name(const void* function) {
  const std::string mangled = mangled_name(reinterpret_cast<uintptr_t>(function) - load_address());
  if (mangled.empty()) {
    char text[32];
    std::snprintf(text, sizeof(text), "%p", function);
    return text;
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  if (status != 0) return mangled;
  std::string text = name.get();
  // Template kernels' symbols begin with the return type, every kernel's end with the parameters.
  if (text.starts_with("void ")) text.erase(0, 5);
  static const std::string kAnonymous = "(anonymous namespace)::";
  for (size_t at = text.find(kAnonymous); at != std::string::npos; at = text.find(kAnonymous)) {
    text.erase(at, kAnonymous.size());
  }
  return text.substr(0, text.find('('));
}

}  // namespace llmb::simt
