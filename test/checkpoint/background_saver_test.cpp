// A save during training: the file contains what start() copied, whatever happens to the tensors afterwards, and ranks
// go through the phases together.
#include "checkpoint/background_saver.h"

#include <gtest/gtest.h>

#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

TEST(BackgroundSaver, WritesTheCopiedValuesAndTheSameFileAsSave) {
  ScratchDirectory scratch;
  save_alone(scratch.file("expected.h5"), small_model(true), small_state());
  const auto errors = on_ranks(3, [&](World& world) {
    auto tensors = small_model(true);
    bool is_spoilt = false;  // the training continues after the copy
    for (TensorSource& tensor : tensors)
      tensor.read = [&, read = tensor.read](std::span<float> out) {
        if (is_spoilt)
          std::ranges::fill(out, -1.0f);
        else
          read(out);
      };
    BackgroundSaver saver(tensors, world);
    EXPECT_FALSE(saver.phase_is_done());
    saver.start(scratch.file("a.h5"), small_state(), {});
    is_spoilt = true;
    EXPECT_TRUE(saver.is_running());
    // Like a training, it continues until the flags report that all ranks are done.
    int n_advances = 0;
    while (saver.is_running()) {
      if (world.any(!saver.phase_is_done())) continue;
      const auto outcome = saver.advance();
      EXPECT_EQ(outcome.has_value(), ++n_advances == Saver::kPhases);
      EXPECT_FALSE(outcome && outcome->error);
    }
    EXPECT_EQ(n_advances, Saver::kPhases);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(bytes_of_file(scratch.file("a.h5")) == bytes_of_file(scratch.file("expected.h5")));
}

TEST(BackgroundSaver, UnpacksStoredLayouts) {
  ScratchDirectory scratch;
  ThreadWorld world(std::make_shared<Meeting>(1), 0);
  TensorSource tensor{"/parameters/w", {3, 5}, [](std::span<float> stored) {
                        for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
                      }};
  tensor.n_stored = 16;  // one element of padding, and reversed
  tensor.unpack = [](std::span<const float> stored, std::span<float> canonical) {
    for (std::size_t i = 0; i < canonical.size(); ++i) canonical[i] = stored[15 - i];
  };
  EXPECT_EQ(BackgroundSaver::copy_bytes({tensor}, 0, 1), (16 + 15) * sizeof(float));
  BackgroundSaver saver({tensor}, world);
  saver.start(scratch.file("a.h5"), small_state(), {});
  EXPECT_FALSE(saver.wait().error.has_value());
  save_alone(scratch.file("b.h5"), {tensor}, small_state());
  const std::vector<NamedTensor> tensors_read = load_all(scratch.file("a.h5"));
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(tensors_read[0].values()[i], static_cast<float>(15 - i));
  EXPECT_TRUE(bytes_of_file(scratch.file("a.h5")) == bytes_of_file(scratch.file("b.h5")));
}

TEST(BackgroundSaver, ReportsAFailureOnAllRanksAndSavesAgain) {
  ScratchDirectory scratch;
  const auto errors = on_ranks(2, [&](World& world) {
    BackgroundSaver saver(small_model(), world);
    saver.start(scratch.file("a.h5"), small_state(),
                {.before = [] { fail(ErrorCode::run_locked, "another job has it"); }, .after = {}});
    const auto outcome = saver.wait();
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::run_locked);
    EXPECT_STREQ(outcome.error->what(), "rank 0 on node0: another job has it");
    saver.start(scratch.file("missing/a.h5"), small_state(), {});
    EXPECT_TRUE(saver.wait().error.has_value());
    int n_after = 0;
    saver.start(scratch.file("a.h5"), small_state(), {.before = {}, .after = [&] { ++n_after; }});
    EXPECT_FALSE(saver.wait().error.has_value());
    EXPECT_EQ(n_after, world.rank() == 0 ? 1 : 0);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(verify(scratch.file("a.h5")).good);
  EXPECT_EQ(scratch.n_entries(), 1u);
}

}  // namespace
}  // namespace lockstep::checkpoint::test
