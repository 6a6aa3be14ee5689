// The keys for writing RUN/model and its model card.
#include <gtest/gtest.h>

#include <string>

#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

std::string problem_of(const std::string& setting) {
  try {
    (void)parse({setting});
    return "none";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config_invalid);
    return error.what();
  }
}

TEST(PublishingKeys, HaveALicenceAndSizesThatTheHubKnows) {
  EXPECT_EQ(parse({"model.license=cc-by-4.0"}).model.license, "cc-by-4.0");
  EXPECT_EQ(parse({"checkpoint.max_shard_size=1.5 GiB"}).checkpoint.max_shard_size, "1.5 GiB");
  EXPECT_EQ(problem_of("checkpoint.max_shard_size=5 parsecs"),
            "command line: checkpoint.max_shard_size: expected a size such as 5GB, 500MB or 1GiB, found \"5 parsecs\"");
  EXPECT_EQ(problem_of("model.license=My licence"),
            "command line: model.license: expected an identifier of the Hugging Face Hub in lower case, such as "
            "apache-2.0, mit, cc-by-4.0 or other, found \"My licence\"");
}

}  // namespace
}  // namespace lockstep::config
