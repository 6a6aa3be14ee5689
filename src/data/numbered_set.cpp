#include "data/numbered_set.h"

#include <cstring>
#include <utility>

#include "data/image_set.h"

namespace lockstep::data {
namespace {

class NumberedSet final : public Dataset {
 public:
  explicit NumberedSet(std::shared_ptr<const Dataset> set) : set_(std::move(set)) {}

  const DatasetInfo& info() const override { return set_->info(); }
  std::vector<Field> fields() const override {
    std::vector<Field> fields = set_->fields();
    fields.push_back({.name = kSampleIdField, .dtype = DType::int32, .shape = {}});
    return fields;
  }
  std::size_t packed_bytes(std::int64_t sample, std::uint32_t epoch) const override {
    return set_->packed_bytes(sample, epoch);
  }
  void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const override {
    set_->read(sample, epoch, targets.first(targets.size() - 1));
    const auto number = static_cast<std::uint32_t>(sample);
    std::memcpy(targets.back().data(), &number, sizeof number);
  }
  std::string sample_word() const override { return set_->sample_word(); }
  double stored_bytes() const override { return set_->stored_bytes(); }
  ReaderWork reader_work() const override { return set_->reader_work(); }
  std::vector<std::string> faster_reading() const override { return set_->faster_reading(); }
  std::vector<std::int32_t> classes() const override { return set_->classes(); }
  void require_unchanged() const override { set_->require_unchanged(); }

 private:
  std::shared_ptr<const Dataset> set_;
};

}  // namespace

std::shared_ptr<const Dataset> numbered(std::shared_ptr<const Dataset> set) {
  return std::make_shared<NumberedSet>(std::move(set));
}

}  // namespace lockstep::data
