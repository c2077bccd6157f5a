#include "cli/compare_sample.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "io/line_reader.h"

namespace llmb {

namespace {

// The names of a table's columns stand before its first row. "" where the file cannot be read so, as it is compressed.
std::string header_of(const std::string& input, const LineRef& first_row) {
  std::ifstream in(input, std::ios::binary);
  std::string bytes(static_cast<size_t>(first_row.byte_offset), '\0');
  in.read(bytes.data(), first_row.byte_offset);
  return in.gcount() == first_row.byte_offset && !bytes.starts_with("\x1f\x8b") && !bytes.starts_with("\x28\xb5\x2f\xfd")
             ? bytes
             : "";
}

const char* suffix_of(InputFormat format) {
  switch (format) {
    case InputFormat::kCsv:
      return ".csv";
    case InputFormat::kTsv:
      return ".tsv";
    case InputFormat::kText:
      return ".txt";
    default:
      return ".jsonl";
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  path_ = (std::filesystem::temp_directory_path() / "llm-batch-sample-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category(), path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Result<LineSample> take_sample(const JobOptions& o, int64_t max_lines, const std::string& name,
                               const ScratchFolder& folder) {
  LineSample sample;
  int64_t num_bytes = 0;
  for (const std::string& input : o.inputs) {
    LineReader reader({input}, kDefaultMaxLineBytes, real_file_ops(), o.data.format);
    std::ofstream out;
    while (true) {
      LLMB_ASSIGN_OR_RETURN(const std::optional<InputLine> line, reader.next());
      if (!line) break;
      if (sample.num_lines == max_lines || num_bytes > kMaxSampleBytes) return sample;
      if (!out.is_open()) {
        sample.files.push_back(folder.file(name + "-" + std::to_string(sample.files.size()) + suffix_of(line->format)));
        out.open(sample.files.back(), std::ios::binary);
        if (line->columns) {
          const std::string header = header_of(input, line->line);
          if (header.empty()) return invalid_argument(input + ": a sample is taken of tables that are not compressed only");
          out << header;
        }
      }
      out << line->bytes << '\n';
      if (!out) return io_error(sample.files.back() + ": cannot write");
      num_bytes += static_cast<int64_t>(line->bytes.size());
      ++sample.num_lines;
    }
  }
  sample.has_all = true;
  return sample;
}

}  // namespace llmb
