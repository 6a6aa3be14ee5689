#include "data/dataset.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

double mean_sample_bytes(const Dataset& set) {
  constexpr std::int64_t kMostSamples = 10'000;
  double fixed = 0;
  bool has_packed = false;
  for (const Field& field : set.fields()) {
    if (field.packing == Packing::packed)
      has_packed = true;
    else
      fixed += static_cast<double>(field.size_bytes());
  }
  const std::int64_t n_all = set.info().n_samples, n = std::min(n_all, kMostSamples);
  if (!has_packed || n == 0) return fixed;
  double packed = 0;
  for (std::int64_t i = 0; i < n; ++i)
    packed += static_cast<double>(Field::packed_bytes(set.packed_bytes(i * n_all / n, 0)));
  return fixed + packed / static_cast<double>(n);
}

std::shared_ptr<const Dataset> numbered(std::shared_ptr<const Dataset> set) {
  return std::make_shared<NumberedSet>(std::move(set));
}

}  // namespace lockstep::data
