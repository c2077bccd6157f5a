#include "jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// Builds values from nlohmann's parser, which calls it without recursion.
class Builder {
 public:
  Builder(Heap& heap, std::string what) : heap_(heap), what_(std::move(what)) {}
  Value root;

  bool null() { return add(Value::none()); }
  bool boolean(bool b) { return add(Value::boolean(b)); }
  bool number_integer(int64_t i) { return add(Value::integer(i)); }
  bool number_unsigned(uint64_t i) {
    if (i > static_cast<uint64_t>(INT64_MAX)) return add_large_integer(std::to_string(i));
    return add(Value::integer(static_cast<int64_t>(i)));
  }
  bool number_float(double f, const std::string& text) {
    if (text.find_first_of(".eE") == text.npos) return add_large_integer(text);
    return add(Value::real(f));
  }
  bool string(std::string& s) { return add(make_string(heap_, s)); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool key(std::string& k) {
    keys_.back() = make_string(heap_, k);
    return true;
  }
  bool start_object(size_t) { return open(Value(Type::kDict, heap_.make<Dict>())); }
  bool start_array(size_t) { return open(make_list(heap_.make<List>())); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    fail("invalid JSON at byte " + std::to_string(position));
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw value_error(what_ + ": " + why); }

  bool add_large_integer(std::string digits) {
    Value v = make_string(heap_, std::move(digits));
    v.as<String>().is_integer = true;
    return add(std::move(v));
  }
  bool add(Value v) {
    heap_.spend(1);
    if (open_.empty()) root = std::move(v);
    else if (open_.back().is(Type::kDict)) open_.back().as<Dict>().set(keys_.back(), std::move(v));
    else open_.back().as<List>().push(std::move(v));
    return true;
  }
  bool open(Value container) {
    if (static_cast<int>(open_.size()) >= heap_.limits().max_value_depth) fail("nested too deeply");
    add(container);
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Heap& heap_;
  std::string what_;
  std::vector<Value> open_;
  std::vector<Value> keys_;  // of each open container, the key read last
};

class Writer {
 public:
  Writer(TextBuilder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void value(const Value& v, int depth) {
    out_.heap().spend(1);
    if (depth > out_.heap().limits().max_value_depth) throw budget_error("a value is nested too deeply");
    switch (v.type()) {
      case Type::kNone:
        return out_.append("null");
      case Type::kBool:
        return out_.append(v.as_bool() ? "true" : "false");
      case Type::kInt:
        return out_.append(std::to_string(v.as_int()));
      case Type::kFloat:
        return out_.append(number(v.as_float()));
      case Type::kString:
        return v.as<String>().is_integer ? out_.append(text_of(v)) : string(text_of(v));
      case Type::kList:
      case Type::kTuple:
        return list(v.as<List>(), depth);
      case Type::kDict:
        return dict(v.as<Dict>(), depth);
      default:
        throw type_error("Object of type " + std::string(type_name(v)) + " is not JSON serializable");
    }
  }

 private:
  static std::string number(double f) {
    if (std::isnan(f)) return "NaN";
    if (std::isinf(f)) return f > 0 ? "Infinity" : "-Infinity";
    return repr_float(f);
  }

  void new_line(int depth) {
    if (!style_.indented) return;
    out_.push_back('\n');
    for (int i = 0; i < depth; ++i) out_.append(style_.indent);
  }

  void list(const List& list, int depth) {
    if (list.items.empty()) return out_.append("[]");
    out_.push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(depth + 1);
      value(list.items[i], depth + 1);
    }
    new_line(depth);
    out_.push_back(']');
  }

  void key(const Value& k) {
    if (k.is_string()) return string(text_of(k));
    if (!k.is_number() && !k.is_none()) {
      throw type_error("keys must be str, int, float, bool or None, not " + std::string(type_name(k)));
    }
    out_.push_back('"');
    value(k, 0);
    out_.push_back('"');
  }

  void dict(const Dict& dict, int depth) {
    if (dict.entries.empty()) return out_.append("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return compare_order(out_.heap(), CompareOp::kLt, a->first, b->first);
      });
    }
    out_.push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(depth + 1);
      key(entries[i]->first);
      out_.append(style_.key_separator);
      value(entries[i]->second, depth + 1);
    }
    new_line(depth);
    out_.push_back('}');
  }

  void unicode_escape(uint32_t unit) {
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", unit);
    out_.append(text);
  }

  void string(std::string_view s) {
    out_.push_back('"');
    for (size_t at = 0; at < s.size();) {
      const size_t plain = at;
      while (at < s.size() && static_cast<uint8_t>(s[at]) >= 0x20 && s[at] != '"' && s[at] != '\\' &&
             (!style_.ensure_ascii || static_cast<uint8_t>(s[at]) < 0x7F)) {
        ++at;
      }
      if (at > plain) out_.append(s.substr(plain, at - plain));
      if (at == s.size()) break;
      const uint32_t c = next_char(s, &at);
      static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
      const size_t known = c < 0x80 ? kFrom.find(static_cast<char>(c)) : kFrom.npos;
      if (known != kFrom.npos) {
        out_.push_back('\\');
        out_.push_back(kTo[known]);
      } else if (c == 0x7F) {
        out_.push_back('\x7f');
      } else {
        if (c >= 0x10000) unicode_escape(0xD800 + ((c - 0x10000) >> 10));
        unicode_escape(c >= 0x10000 ? 0xDC00 + ((c - 0x10000) & 0x3FF) : c);
      }
    }
    out_.push_back('"');
  }

  TextBuilder& out_;
  const JsonStyle& style_;
};

}  // namespace

Value parse_json(Heap& heap, std::string_view text, const char* what) {
  heap.spend_chars(text.size());
  Builder builder(heap, what);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw value_error(std::string(what) + ": invalid JSON");
  }
  return std::move(builder.root);
}

Value write_json(Heap& heap, const Value& v, const JsonStyle& style) {
  TextBuilder out(heap);
  Writer(out, style).value(v, 0);
  return out.finish();
}

}  // namespace llmb::jinja
