// Rules of the tree that no compiler checks: include directions, lengths, where CUDA may appear, that every test runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/process.h"
#include "tests/support/source_dir.h"
#include "tests/support/source_scan.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const fs::path kRoot = source_dir();

// Folder → folders that it may include, itself apart. The picture in src/README.md.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"core", {"base"}},
    {"io", {"core", "base"}},
    {"text", {"base"}},
    {"jinja", {"text", "base"}},
    {"formats", {"core", "base"}},
    {"chat", {"jinja", "formats", "core", "base"}},
    {"tokenizer", {"text", "formats", "core", "base"}},
    {"grammar", {"text", "core", "base"}},
    {"cache", {"core", "base"}},
    {"scheduler", {"cache", "core", "base"}},
    {"kernels/cpu", {"core", "base"}},
    {"kernels/cuda", {"kernels/simt", "core", "base"}},
    {"kernels/simt", {"base"}},
    {"model", {"formats", "core", "base"}},
    {"backend", {"model", "kernels/cpu", "kernels/cuda", "core", "base"}},
    {"speculation", {"scheduler", "cache", "backend", "core", "base"}},
    {"engine", {"chat", "tokenizer", "grammar", "scheduler", "backend", "core", "base"}},
    {"planner", {"core", "base"}},
    {"job",
     {"planner", "engine", "speculation", "io", "chat", "tokenizer", "scheduler", "backend", "model", "core", "base"}},
    {"report", {"io", "core", "base"}},
    {"inspect", {"chat", "tokenizer", "formats", "model", "core", "base"}},
    {"cli", {"job", "report", "inspect", "engine", "io", "tokenizer", "scheduler", "backend", "model", "core", "base"}},
};

bool is_source(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  return kExtensions.contains(path.extension().string());
}

// "src/backend/cpu/x.cpp" → "backend"; "kernels/cpu/x.h" → "kernels/cpu"; "tokenizer/x.h" (an include) → "tokenizer".
std::string folder_of(const std::string& path) {
  if (path.starts_with("kernels/")) return path.substr(0, path.find('/', 8));
  const size_t begin = path.starts_with("src/") ? 4 : 0;
  return path.substr(begin, path.find('/', begin) - begin);
}

// Calls visit(path from the top, content) for each source file under the folders.
template <typename Visit>
void for_each_source(std::initializer_list<const char*> tops, const Visit& visit) {
  for (const char* top : tops)
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top))
      if (entry.is_regular_file() && is_source(entry.path()))
        visit(fs::relative(entry.path(), kRoot).string(), read_file(entry.path().string()));
}

// The file that an #include of ours names; "" for a header of somebody else.
std::string find_header(const std::string& include, const std::string& includer) {
  for (const fs::path& place :
       {fs::path("src") / include, fs::path(include), fs::path(includer).parent_path() / include})
    if (fs::exists(kRoot / place)) return place.string();
  return "";
}

// Files that a tool writes.
const std::set<std::string> kGenerated = {"src/text/unicode_tables.cpp"};

// Included for other things than names of their own.
bool is_used_without_names(const std::string& header) {
  return header == "kernels/cpu/simd_targets.h"                                    // macros that Highway reads
         || header == "kernels/cuda/ptx.h" || header == "kernels/cuda/ptx_sm90.h"  // or the layer's in their place
         || header.starts_with("kernels/simt/include/");                           // CUDA's, made of several
}

}  // namespace

TEST_CASE("the top level is fixed: build folders and files of git's own apart, nothing comes to it") {
  const std::set<std::string> fixed = {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "data",
                                       "examples",       "kernels", "src",      "tests",     "tools"};
  // In a checkout git says what belongs to it; elsewhere everything does.
  const ProcessResult listed = run_process({"git", "-C", kRoot.string(), "ls-files", "-z"});
  std::set<std::string> names;
  if (listed.exit_code == 0) {
    std::stringstream paths(listed.out);
    for (std::string path; std::getline(paths, path, '\0');) names.insert(path.substr(0, path.find('/')));
  } else {
    for (const auto& entry : fs::directory_iterator(kRoot)) names.insert(entry.path().filename().string());
  }
  for (const std::string& name : names)
    CHECK_MESSAGE((fixed.count(name) == 1 || name[0] == '.' || name.starts_with("build")), name);
}

TEST_CASE("every include follows the dependency direction") {
  int num_files = 0;
  for_each_source({"src", "kernels"}, [&](const std::string& file, const std::string& text) {
    num_files++;
    const std::string folder = folder_of(file);
    const auto allowed = kMayInclude.find(folder);
    REQUIRE_MESSAGE(allowed != kMayInclude.end(), file << ": folder '" << folder << "' has no place in the picture");
    for (const std::string& include : quoted_includes(text)) {
      if (include.find('/') == std::string::npos) continue;  // kernels/simt: stand-ins for CUDA's own headers
      const std::string target = folder_of(include);
      if (target == "hwy" && folder == "kernels/cpu") continue;  // Highway includes a file again and again, by quotes
      CHECK_MESSAGE((target == folder || allowed->second.contains(target)), file << " includes " << include);
    }
  });
  CHECK(num_files > 50);
}

TEST_CASE("a file has at most 400 lines") {
  for (const char* top : {"src", "kernels", "tools", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      const bool is_script = entry.path().extension() == ".py" || entry.path().extension() == ".sh";
      if (!entry.is_regular_file() || !(is_source(entry.path()) || is_script)) continue;
      const std::string file = fs::relative(entry.path(), kRoot).string(), text = read_file(entry.path().string());
      if (kGenerated.contains(file)) continue;
      const auto num_lines = std::count(text.begin(), text.end(), '\n');
      CHECK_MESSAGE(num_lines <= 400, file << " has " << num_lines << " lines");
    }
}

TEST_CASE("no comment begins with \"Of\" or \"What\": its subject comes first") {
  static const std::regex kInverted(R"(^\s*// (Of|What) )");
  int num_comments = 0;
  for_each_source({"src", "kernels", "tools", "tests"}, [&](const std::string& file, const std::string& text) {
    std::istringstream lines(text);
    bool is_inside = false;  // behind a comment's first line
    for (std::string line; std::getline(lines, line);) {
      const size_t begin = line.find_first_not_of(' ');
      const bool is_comment = begin != std::string::npos && line.compare(begin, 3, "// ") == 0;
      if (is_comment && !is_inside) {
        num_comments++;
        CHECK_MESSAGE(!std::regex_search(line, kInverted), file << ": " << line);
      }
      is_inside = is_comment;
    }
  });
  CHECK(num_comments > 3000);
}

TEST_CASE("a function has at most 60 lines") {
  int num_functions = 0;
  for_each_source({"src", "kernels"}, [&](const std::string& file, const std::string& text) {
    for (const FunctionExtent& f : function_extents(text)) {
      num_functions++;
      const bool is_table = file == "src/cli/command_line.cpp" || file == "src/cli/answer_options.cpp";  // of flags
      CHECK_MESSAGE((f.num_lines <= 60 || is_table), file << ":" << f.line << ": " << f.num_lines << " lines");
    }
  });
  CHECK(num_functions > 3000);
}

TEST_CASE("a file names something of every header of ours that it includes") {
  std::map<std::string, std::set<std::string>> declared;  // by header
  int num_includes = 0;
  for_each_source({"src", "kernels", "tools", "tests"}, [&](const std::string& file, const std::string& text) {
    const std::set<std::string> used = identifiers(text);
    for (const std::string& include : quoted_includes(text)) {
      const std::string header = find_header(include, file);
      const bool is_own = fs::path(header).stem() == fs::path(file).stem();
      if (header.empty() || is_own || is_used_without_names(header) || file.starts_with("kernels/simt/include/"))
        continue;
      num_includes++;
      auto names = declared.find(header);
      if (names == declared.end())
        names = declared.emplace(header, declared_names(read_file((kRoot / header).string()))).first;
      const bool is_used = std::any_of(names->second.begin(), names->second.end(),
                                       [&](const auto& name) { return used.contains(name); });
      CHECK_MESSAGE(is_used, file << " includes " << include << " for nothing");
    }
  });
  CHECK(num_includes > 1000);
}

TEST_CASE("no two files of a folder of src define one name in their unnamed namespaces: they are compiled as one") {
  // A type, a constant, or a function with its parameters.
  const std::regex type(R"(^(?:struct|class|enum class|enum) (\w+))");
  const std::regex constant(R"(^(?:constexpr|const|static|inline) [^(={]*?(\w+)(?:\[[^\]]*\])* ?[={;])");
  const std::regex function(R"(^[A-Za-z][\w:<>,*& ]*?[ *&](\w+\([^{]*))");
  const std::regex parameter_name(R"(\w+(?=[,)]|$))");
  std::map<std::string, std::string> file_of;  // folder/name
  for_each_source({"src"}, [&](const std::string& file, const std::string& text) {
    if (!file.ends_with(".cpp")) return;
    const std::string folder = fs::path(file).parent_path().string();
    bool is_unnamed = false;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line == "namespace {") is_unnamed = true;
      if (line == "}  // namespace") is_unnamed = false;
      if (!is_unnamed || line.empty() || !std::isalpha(static_cast<unsigned char>(line[0]))) continue;
      if (line.starts_with("template") || line.starts_with("using ")) continue;
      std::smatch found;
      std::string name;
      if (std::regex_search(line, found, type) || std::regex_search(line, found, constant)) name = found[1];
      else if (std::regex_search(line, found, function)) name = std::regex_replace(found[1].str(), parameter_name, "");
      if (name.empty()) continue;
      const auto [at, is_new] = file_of.emplace(folder + "/" + name, file);
      CHECK_MESSAGE(at->second == file, at->first << ": in " << at->second << " and in " << file);
    }
  });
  CHECK(file_of.size() > 500);
}

TEST_CASE("kernels/cuda includes the host SIMT layer only where LLMB_SIMT is defined") {
  static const std::regex kGuarded(R"(#ifdef LLMB_SIMT\n(#include "kernels/simt/[^"]+"\n)+#(else|endif))");
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "kernels/cuda")) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    const std::string rest = std::regex_replace(read_file(entry.path().string()), kGuarded, "");
    CHECK_MESSAGE(rest.find("\"kernels/simt/") == std::string::npos, entry.path().string());
  }
}

TEST_CASE(
    "CUDA headers appear only in kernels/cuda, on the host layer that stands in for them, and in src/backend/cuda") {
  static const std::regex kCuda(R"(#\s*include\s*[<"](cuda|cublas|nccl|cooperative_groups|mma\.h))");
  for (const char* top : {"src", "kernels", "tools"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string file = fs::relative(entry.path(), kRoot).string();
      if (file.starts_with("kernels/cuda/") || file.starts_with("kernels/simt/")) continue;
      if (file.starts_with("src/backend/cuda/")) continue;
      if (file == "tools/cuda_bench.h") continue;  // events and device memory of the kernels' bench
      CHECK_MESSAGE(!std::regex_search(read_file(entry.path().string()), kCuda), file);
    }
}

TEST_CASE(
    "FAULTS 26: no thread_local, whose destructor the C library registers or ends the process; per_thread() does") {
  static const std::regex kThreadLocal(R"(^\s*(static\s+|inline\s+)*thread_local\b)");
  for (const char* top : {"src", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      if (entry.path().string().find("/kernels/simt/") != std::string::npos) continue;  // only in test programs
      std::stringstream lines(read_file(entry.path().string()));
      for (std::string line; std::getline(lines, line);)
        CHECK_MESSAGE(!std::regex_search(line, kThreadLocal), entry.path().string() << ": " << line);
    }
}

TEST_CASE("every test file is registered with CTest") {
  const ProcessResult listed = run_process({"ctest", "--test-dir", binary_dir(), "-N"});
  REQUIRE_MESSAGE(listed.exit_code == 0, listed.err);
  int num_tests = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("_test.cpp")) continue;
    num_tests++;
    std::string folder = entry.path().parent_path().filename().string();
    if (folder == "cuda") folder = "kernels_simt";  // and, with CUDA in the program, the same for a GPU
    if (folder == "backend_cuda") folder = "backend_cuda_simt";
    const std::string test = folder + "/" + entry.path().stem().string();
    CHECK_MESSAGE(listed.out.find(" " + test + "\n") != std::string::npos, test << " is not run");
  }
  CHECK(num_tests > 10);
}

TEST_CASE("a file under tests that holds test cases is named *_test.cpp") {
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".cpp" || name.ends_with("_test.cpp")) continue;
    CHECK_MESSAGE(read_file(entry.path().string()).find("TEST_CASE(") == std::string::npos, entry.path().string());
  }
}

}  // namespace llmb::test
