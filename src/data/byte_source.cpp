#include "data/byte_source.h"

#include <algorithm>

#include "base/signals.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBufferBytes = 1u << 20;

}  // namespace

std::string head_of(const InputFile& file, std::size_t most) {
  std::string head(std::min<std::uint64_t>(most, file.size_bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)), "its first bytes");
  return head;
}

bool is_compressed(std::string_view head) {
  return head.starts_with("\x1f\x8b") || head.starts_with("\x28\xb5\x2f\xfd");
}

ByteSource::ByteSource(const std::string& path) : file_(path) {
  const std::string head = head_of(file_);
  if (!is_compressed(head)) return;
  const char* what =
      head[0] == '\x1f' ? "a file that was compressed with gzip" : "a file that was compressed with zstd";
  decompressing_ =
      std::make_unique<ArrowProcess>(path, what, std::vector<std::string>{"decompress"}, 16 * kBufferBytes);
}

std::uint64_t ByteSource::done_bytes() const {
  return decompressing_ ? decompressing_->done_bytes() : offset_ - (part_.size() - used_);
}

std::string_view ByteSource::buffered() {
  if (used_ < part_.size()) return part_.substr(used_);
  used_ = 0;
  part_ = {};
  if (decompressing_) {
    if (!decompressing_->next('B', part_)) part_ = {};
    return part_;
  }
  throw_if_stopped();
  const std::uint64_t n = std::min<std::uint64_t>(kBufferBytes, file_.size_bytes() - offset_);
  buffer_.resize(n);
  file_.read(offset_, std::as_writable_bytes(std::span(buffer_)), "the text");
  offset_ += n;
  return part_ = buffer_;
}

bool ByteSource::read_line(std::string& line, std::uint64_t max_bytes, std::int64_t number) {
  bool found = false;
  for (std::string_view rest = buffered(); !rest.empty(); rest = buffered()) {
    found = true;
    const std::size_t end = rest.find('\n');
    const std::size_t n = std::min(end, rest.size());
    require(line.size() + n <= max_bytes, ErrorCode::data_source,
            "{}:{}: this line has more than {} bytes; --max-line allows longer ones, but a document is held in memory "
            "as a whole, which takes up to 50 times as much",
            file_.path(), number, max_bytes);
    const bool is_whole = end != std::string_view::npos;
    line.append(rest.substr(0, is_whole ? n + 1 : n));
    use(is_whole ? n + 1 : n);
    if (is_whole) break;
  }
  return found;
}

}  // namespace lockstep::data
