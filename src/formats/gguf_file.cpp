#include "formats/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/utf8.h"

namespace llmb {

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxNameBytes = 512;
constexpr uint64_t kMaxGgufHeaderBytes = 256 << 20;  // walked once when the file is opened
constexpr uint64_t kMaxGgufRank = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;

constexpr GgufTensorType kTensorTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

const GgufTensorType* find_tensor_type(uint32_t id) {
  for (const GgufTensorType& type : kTensorTypes)
    if (type.id == id) return &type;
  return nullptr;
}

// 0: of variable size.
uint64_t value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    default:
      return 0;
  }
}

std::string quoted(std::string_view text) { return "\"" + std::string(text.substr(0, 100)) + "\""; }

template <typename T>
T load(std::string_view bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

// One pass over the header.
class GgufFile::Reader {
 public:
  Reader(std::span<const uint8_t> bytes, GgufFile* file)
      : file_bytes_(bytes),
        rest_(reinterpret_cast<const char*>(bytes.data()), std::min<uint64_t>(bytes.size(), kMaxGgufHeaderBytes)),
        begin_(rest_.data()),
        out_(*file) {}

  Status read() {
    uint64_t num_tensors = 0, num_keys = 0;
    LLMB_RETURN_IF_ERROR(read_preamble(&num_tensors, &num_keys));
    for (uint64_t i = 0; i < num_keys; ++i) LLMB_RETURN_IF_ERROR(read_entry());
    LLMB_RETURN_IF_ERROR(read_alignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < num_tensors; ++i) LLMB_RETURN_IF_ERROR(read_tensor(&offsets));
    return place_tensors(offsets);
  }

 private:
  Status cut_short() const {
    const bool is_limit = file_bytes_.size() > kMaxGgufHeaderBytes;
    return data_loss(is_limit ? "the header is over the limit of " + std::to_string(kMaxGgufHeaderBytes >> 20) + " MiB"
                              : "the file ends inside the header, at byte " + std::to_string(position()));
  }
  uint64_t position() const { return static_cast<uint64_t>(rest_.data() - begin_); }

  template <typename T>
  Status take(T* out) {
    if (rest_.size() < sizeof(T)) return cut_short();
    *out = load<T>(rest_, 0);
    rest_.remove_prefix(sizeof(T));
    return {};
  }

  Status take_bytes(uint64_t count, std::string_view* out) {
    if (count > rest_.size()) return cut_short();
    *out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return {};
  }

  Status take_string(std::string_view* out) {
    uint64_t size = 0;
    LLMB_RETURN_IF_ERROR(take(&size));
    return take_bytes(size, out);
  }

  Status take_name(const char* what, std::string_view* out) {
    LLMB_RETURN_IF_ERROR(take_string(out));
    if (out->empty() || out->size() > kMaxNameBytes)
      return data_loss(std::string("the name of a ") + what + " has " + std::to_string(out->size()) +
                       " bytes, expected 1 to " + std::to_string(kMaxNameBytes));
    if (!is_valid_utf8(*out)) return data_loss(std::string("the name of a ") + what + " is not UTF-8");
    return {};
  }

  Status read_preamble(uint64_t* num_tensors, uint64_t* num_keys) {
    uint32_t magic = 0, version = 0;
    if (rest_.size() < 4 || !rest_.starts_with("GGUF"))
      return data_loss("not a GGUF file; of a model in other files, give the directory");
    LLMB_RETURN_IF_ERROR(take(&magic));
    LLMB_RETURN_IF_ERROR(take(&version));
    if (version != 2 && version != 3)
      return unsupported((version & 0xffff) == 0 && version != 0
                             ? "a big-endian GGUF file is not supported"
                             : "GGUF version " + std::to_string(version) + " is not supported; supported: 2, 3");
    LLMB_RETURN_IF_ERROR(take(num_tensors));
    LLMB_RETURN_IF_ERROR(take(num_keys));
    if (*num_tensors > kMaxGgufTensors)
      return data_loss(std::to_string(*num_tensors) + " tensors are over the limit of " +
                       std::to_string(kMaxGgufTensors));
    if (*num_keys > kMaxKeys)
      return data_loss(std::to_string(*num_keys) + " keys are over the limit of " + std::to_string(kMaxKeys));
    return {};
  }

  Status read_entry() {
    std::string_view key;
    LLMB_RETURN_IF_ERROR(take_name("key", &key));
    GgufValue value;
    const Status status = read_value(&value);
    if (!status.ok()) return status.with_context("key " + quoted(key));
    if (!out_.values_.emplace(key, value).second) return data_loss("key " + quoted(key) + " is given twice");
    return {};
  }

  Status read_type(GgufValueType* type) {
    uint32_t id = 0;
    LLMB_RETURN_IF_ERROR(take(&id));
    if (id > static_cast<uint32_t>(GgufValueType::kFloat64))
      return data_loss("value type " + std::to_string(id) + " is not known");
    *type = static_cast<GgufValueType>(id);
    return {};
  }

  Status read_value(GgufValue* value) {
    LLMB_RETURN_IF_ERROR(read_type(&value->type));
    if (value->type == GgufValueType::kString) return take_string(&value->bytes);
    if (value->type != GgufValueType::kArray) return take_bytes(value_bytes(value->type), &value->bytes);
    value->is_array = true;
    LLMB_RETURN_IF_ERROR(read_type(&value->type));
    LLMB_RETURN_IF_ERROR(take(&value->count));
    if (value->type == GgufValueType::kArray) return unsupported("an array of arrays is not supported");
    const uint64_t size = value->type == GgufValueType::kString ? 8 : value_bytes(value->type);
    if (value->count > rest_.size() / size) return cut_short();
    if (value->type != GgufValueType::kString) return take_bytes(value->count * size, &value->bytes);
    const char* const begin = rest_.data();
    std::string_view text;
    for (uint64_t i = 0; i < value->count; ++i) LLMB_RETURN_IF_ERROR(take_string(&text));
    value->bytes = {begin, static_cast<size_t>(rest_.data() - begin)};
    return {};
  }

  Status read_alignment() {
    const GgufValue* value = out_.find("general.alignment");
    if (value == nullptr) return {};
    const auto alignment = out_.integer("general.alignment");
    if (!alignment || *alignment < 1 || *alignment > static_cast<int64_t>(kMaxAlignment) ||
        (*alignment & (*alignment - 1)) != 0)
      return data_loss("\"general.alignment\" is not a power of two up to " + std::to_string(kMaxAlignment));
    alignment_ = static_cast<uint64_t>(*alignment);
    return {};
  }

  Status read_tensor(std::vector<uint64_t>* offsets) {
    GgufTensor tensor;
    LLMB_RETURN_IF_ERROR(take_name("tensor", &tensor.name));
    uint32_t rank = 0, type = 0;
    uint64_t offset = 0;
    Status status = take(&rank);
    if (status.ok() && (rank < 1 || rank > kMaxGgufRank))
      status = data_loss(std::to_string(rank) + " dimensions, expected 1 to 4");
    for (uint32_t i = 0; status.ok() && i < rank; ++i) {
      uint64_t size = 0;
      status = take(&size);
      if (status.ok() && (size < 1 || size > INT64_MAX)) status = data_loss("a dimension of " + std::to_string(size));
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    if (status.ok()) status = take(&type);
    if (status.ok()) status = take(&offset);
    uint64_t bytes = 0;
    if (status.ok()) status = check_type(type, &tensor, &bytes);
    if (!status.ok()) return status.with_context("tensor " + quoted(tensor.name));
    if (!out_.tensor_index_.emplace(tensor.name, out_.tensors_.size()).second)
      return data_loss("tensor " + quoted(tensor.name) + " is given twice");
    offsets->push_back(offset);
    tensor.data = {static_cast<const uint8_t*>(nullptr), bytes};  // placed when the header's end is known
    out_.tensors_.push_back(std::move(tensor));
    return {};
  }

  static Status check_type(uint32_t id, GgufTensor* tensor, uint64_t* bytes) {
    tensor->type = find_tensor_type(id);
    if (tensor->type == nullptr) return data_loss("tensor type " + std::to_string(id) + " is not known");
    const uint32_t block = tensor->type->block_size;
    if (tensor->cols() % block != 0)
      return data_loss("rows of " + std::to_string(tensor->cols()) + " numbers are not whole blocks of " +
                       std::to_string(block) + " (" + tensor->type->name + ")");
    *bytes = tensor->type->block_bytes;
    bool overflow = __builtin_mul_overflow(*bytes, static_cast<uint64_t>(tensor->cols()) / block, bytes);
    for (size_t i = 0; i + 1 < tensor->shape.size(); ++i)
      overflow = overflow || __builtin_mul_overflow(*bytes, static_cast<uint64_t>(tensor->shape[i]), bytes);
    return overflow ? data_loss("its size overflows") : Status();
  }

  uint64_t aligned(uint64_t position) const { return (position + alignment_ - 1) & ~(alignment_ - 1); }

  // Offsets count from the end of the header, aligned.
  Status place_tensors(const std::vector<uint64_t>& offsets) {
    const uint64_t data_begin = aligned(position());
    const uint64_t size = file_bytes_.size();
    std::vector<size_t> order(offsets.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
    uint64_t expected = 0;
    for (const size_t i : order) {
      GgufTensor& tensor = out_.tensors_[i];
      const uint64_t bytes = tensor.data.size();
      const std::string name = "tensor " + quoted(tensor.name);
      if (offsets[i] % alignment_ != 0)
        return data_loss(name + " begins at " + std::to_string(offsets[i]) + ", not a multiple of " +
                         std::to_string(alignment_));
      if (offsets[i] != expected)
        return data_loss(
            name + " begins at " + std::to_string(offsets[i]) +
            (offsets[i] > expected ? ", leaving a hole after " : ", overlapping the tensor before, which ends at ") +
            std::to_string(expected));
      if (data_begin > size || offsets[i] > size - data_begin || bytes > size - data_begin - offsets[i])
        return data_loss(name + " goes past the end of the file");
      tensor.data = file_bytes_.subspan(data_begin + offsets[i], bytes);
      expected = aligned(offsets[i] + bytes);  // inside the file but for the padding
    }
    return {};
  }

  const std::span<const uint8_t> file_bytes_;
  std::string_view rest_;
  const char* const begin_;
  uint64_t alignment_ = 32;
  GgufFile& out_;
};

Result<GgufFile> GgufFile::parse(std::span<const uint8_t> bytes) {
  GgufFile file;
  LLMB_RETURN_IF_ERROR(Reader(bytes, &file).read());
  return file;
}

Result<GgufFile> GgufFile::open_one(const std::string& path) {
  LLMB_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  Result<GgufFile> file = parse({mapped.data(), mapped.size()});
  LLMB_RETURN_IF_ERROR(mapped.still_readable());
  if (!file.ok()) return file.status().with_context(path);
  file->files_.push_back(std::move(mapped));
  return file;
}

Status GgufFile::still_readable() const {
  for (const MappedFile& file : files_) LLMB_RETURN_IF_ERROR(file.still_readable());
  return {};
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array || value->type != GgufValueType::kString) return std::nullopt;
  return value->bytes;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array || !is_gguf_integer(value->type)) return std::nullopt;
  return gguf_integer(*value, 0);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array || (!is_gguf_integer(value->type) && !is_gguf_float(value->type)))
    return std::nullopt;
  return gguf_number(*value, 0);
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array || value->type != GgufValueType::kBool) return std::nullopt;
  return value->bytes[0] != 0;
}

bool is_gguf_integer(GgufValueType type) {
  return value_bytes(type) > 0 && type != GgufValueType::kBool && !is_gguf_float(type);
}

bool is_gguf_float(GgufValueType type) { return type == GgufValueType::kFloat32 || type == GgufValueType::kFloat64; }

int64_t gguf_integer(const GgufValue& value, uint64_t index) {
  switch (value.type) {
    case GgufValueType::kUint8:
      return load<uint8_t>(value.bytes, index);
    case GgufValueType::kInt8:
      return load<int8_t>(value.bytes, index);
    case GgufValueType::kUint16:
      return load<uint16_t>(value.bytes, index);
    case GgufValueType::kInt16:
      return load<int16_t>(value.bytes, index);
    case GgufValueType::kUint32:
      return load<uint32_t>(value.bytes, index);
    case GgufValueType::kInt32:
      return load<int32_t>(value.bytes, index);
    case GgufValueType::kInt64:
      return load<int64_t>(value.bytes, index);
    case GgufValueType::kUint64:
      return static_cast<int64_t>(std::min<uint64_t>(load<uint64_t>(value.bytes, index), INT64_MAX));
    default:
      return 0;
  }
}

double gguf_number(const GgufValue& value, uint64_t index) {
  if (value.type == GgufValueType::kFloat32) return load<float>(value.bytes, index);
  if (value.type == GgufValueType::kFloat64) return load<double>(value.bytes, index);
  return static_cast<double>(gguf_integer(value, index));
}

bool GgufStrings::next(std::string_view* text) {
  // They were checked, but the file may have been written to meanwhile.
  if (left_ == 0 || rest_.size() < 8) return false;
  const auto size = load<uint64_t>(rest_, 0);
  if (size > rest_.size() - 8) return false;
  --left_;
  *text = rest_.substr(8, size);
  rest_.remove_prefix(8 + size);
  return true;
}

}  // namespace llmb
