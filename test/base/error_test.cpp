// The error table: every code has its row, status and remedy.
#include "lockstep/error.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

const std::vector<ErrorCode> kAllCodes = {
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) ErrorCode::code,
#include "errors.def"
#undef LOCKSTEP_ERROR
};

TEST(Error, EveryCodeHasItsOwnRow) {
  EXPECT_EQ(entry(ErrorCode::internal).code, "internal");
  EXPECT_EQ(entry(ErrorCode::usage).code, "usage");
  std::set<std::string_view> names;
  for (const ErrorCode code : kAllCodes) names.insert(entry(code).code);
  EXPECT_EQ(names.size(), kAllCodes.size());
}

TEST(Error, StatusesAndTextsAreUsable) {
  for (const ErrorCode code : kAllCodes) {
    const ErrorEntry& row = entry(code);
    EXPECT_TRUE(row.exit_status == kExitFailed || row.exit_status == kExitUsage || row.exit_status == kExitStopped)
        << row.code;
    EXPECT_GT(row.meaning.size(), 10u) << row.code;
    EXPECT_GT(row.remedy.size(), 5u) << row.code;
    const bool is_wrong_usage = row.code.starts_with("config_") || row.code == "usage";
    if (is_wrong_usage) {
      EXPECT_EQ(row.exit_status, kExitUsage) << row.code;
    }
  }
}

TEST(Error, RequireThrowsTheFormattedMessage) {
  EXPECT_NO_THROW(require(true, ErrorCode::usage, "not {}", "thrown"));
  try {
    require(1 + 1 == 3, ErrorCode::usage, "expected {}, found {}", 3, 2);
    FAIL() << "require(false) must throw";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "expected 3, found 2");
    EXPECT_EQ(e.code(), ErrorCode::usage);
  }
}

}  // namespace
}  // namespace lockstep
