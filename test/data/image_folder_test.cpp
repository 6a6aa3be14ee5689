// Imports of JPEG files: class folders and Tiny ImageNet, stored decoded and as JPEG bytes, and the messages for other
// folders.
#include "data/image_folder.h"

#include <gtest/gtest.h>

#include "data/image_decoder.h"
#include "test/data/files.h"
#include "test/data/jpeg_files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

class ImageFolder : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    write_all(folder_ / name, bytes);
  }
  /// Three classes whose names need sorting and quoting; five images, one grey.
  void put_classes() {
    put("in/zebra/a.JPEG", smooth_jpeg(16, 16, 0));
    put("in/Ärger mit Leerzeichen/1.jpg", smooth_jpeg(16, 16, 1, {.channels = 1}));
    put("in/cat/b.jpg", smooth_jpeg(16, 16, 2));
    put("in/cat/a b.jpeg", smooth_jpeg(16, 16, 3));
    put("in/cat/deeper.jpg/c.jpg", smooth_jpeg(16, 16, 4));  // a folder with an image's name
    put("in/cat/notes.txt", "no image");
  }
  ImageFolderOptions options(ImageStorage storage = ImageStorage::automatic) const {
    ImageFolderOptions o;
    o.source = folder_ / "in";
    o.output = folder_ / "out.h5";
    o.storage = storage;
    o.replace = true;
    return o;
  }
  static std::vector<std::vector<std::uint8_t>> images_of(const ImageSet& set, std::uint32_t epoch = 0) {
    std::vector<std::vector<std::uint8_t>> out;
    for (std::int64_t i = 0; i < set.info().n_samples; ++i) {
      out.emplace_back(set.info().image_bytes());
      std::int32_t label = 0;
      set.read_image(i, epoch, out.back(), label);
      out.back().push_back(static_cast<std::uint8_t>(label));
    }
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(ImageFolder, BothStorageFormsReturnTheSameImages) {
  put_classes();
  const ImportResult decoded = import_image_folder(options(), {});
  EXPECT_NE(decoded.storage.find("decoded (the images have one size"), std::string::npos) << decoded.storage;
  EXPECT_EQ(decoded.info.class_names, (std::vector<std::string>{"cat", "zebra", "Ärger mit Leerzeichen"}));
  EXPECT_EQ(decoded.samples_per_class, (std::vector<std::int64_t>{3, 1, 1}));
  EXPECT_EQ(decoded.info.height, 16);
  const auto images = images_of(*open_image_set(options().output));
  ASSERT_EQ(images.size(), 5u);
  for (const auto& [image, seed] : {std::pair{0, 3}, {1, 2}, {2, 4}, {3, 0}})
    EXPECT_NEAR(images[static_cast<std::size_t>(image)][0], smooth_value(0, 0, 0, seed), 12) << image;
  const auto& grey = images[4];
  EXPECT_EQ(grey.back(), 2);
  for (std::size_t i = 0; i + 3 < grey.size(); i += 3) ASSERT_TRUE(grey[i] == grey[i + 1] && grey[i] == grey[i + 2]);

  const ImportResult jpeg = import_image_folder(options(ImageStorage::encoded), {});
  EXPECT_EQ(jpeg.info.mean, decoded.info.mean);
  EXPECT_EQ(jpeg.info.stddev, decoded.info.stddev);
  EXPECT_EQ(images_of(*open_image_set(options().output)), images);
  const InputFile file(options().output);
  const ImageFile layout = open_image_file(file);
  EXPECT_TRUE(layout.has_user_block && layout.encoded);
  EXPECT_TRUE(verify_image_file(file, layout, {}).empty());
  // A range of the samples.
  const auto part = images_of(*open_image_set(options().output, 1, 3));
  EXPECT_EQ(part, (std::vector{images[1], images[2]}));
  // Equal sources result in equal files.
  const std::string before = read_all(options().output);
  import_image_folder(options(ImageStorage::encoded), {});
  EXPECT_TRUE(before == read_all(options().output));
}

TEST_F(ImageFolder, SeveralSizesAreStoredAsJpegAndResized) {
  put_classes();
  put("in/zebra/large.jpg", smooth_jpeg(120, 90, 5));
  put("in/zebra/tiny.jpg", smooth_jpeg(1, 1, 6));
  EXPECT_NE(import_image_folder(options(), {}).storage.find("have several sizes"), std::string::npos);
  EXPECT_ERROR(ErrorCode::data_size, "set data.image_size", open_image_set(options().output));
  const auto shown = open_image_set(options().output, 0, 0, {.image_size = 12});
  EXPECT_EQ(shown->info().height, 12);
  const auto images = images_of(*shown);
  ASSERT_EQ(images.size(), 7u);
  EXPECT_EQ(images_of(*shown, 1), images) << "the centre is the same in every epoch";
  const auto cropped = open_image_set(options().output, 0, 0, {.image_size = 12, .resized_crop = true, .seed = 3});
  const auto first = images_of(*cropped, 0);
  EXPECT_EQ(images_of(*cropped, 0), first);
  EXPECT_NE(images_of(*cropped, 1), first);
  // Samples are numbered by their position in the file, whatever the range.
  EXPECT_EQ(images_of(*open_image_set(options().output, 3, 5, {.image_size = 12, .resized_crop = true, .seed = 3})),
            (std::vector{first[3], first[4]}));
  EXPECT_ERROR(ErrorCode::data_source, "requires images of one size",
               import_image_folder(options(ImageStorage::decoded), {}));
}

// Decoding at half the size first must not change the image: the tolerance is that of JPEG's own loss.
TEST_F(ImageFolder, ScaledDecodingKeepsTheImage) {
  put("in/a/1.jpg", encode_jpeg(smooth_pixels(64, 64, 3, 1), 64, 64));
  std::vector<std::uint8_t> ramp;
  for (int i = 0; i < 256 * 320; ++i)
    for (int c = 0; c < 3; ++c) ramp.push_back(static_cast<std::uint8_t>(c == 1 ? i / 320 : i % 320 * 3 / 4));
  put("in/a/2.jpg", encode_jpeg(ramp, 256, 320));
  import_image_folder(options(ImageStorage::encoded), {});
  const auto images = images_of(*open_image_set(options().output, 1, 2, {.image_size = 28}));  // 32 of 256: an eighth
  std::vector<std::uint8_t> whole(28 * 28 * 3);
  Resizer().resize({ramp.data(), 256, 320, 3, 960}, centre_box(256, 320, 28), 28, 28, whole);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(images[0][i], whole[i], 3) << i;
}

TEST_F(ImageFolder, DecodedSetsAreResizedToo) {
  put_classes();
  import_image_folder(options(), {});
  const auto decoded =
      images_of(*open_image_set(options().output, 0, 0, {.image_size = 12}));  // decoded to 16: 8 are few
  const auto cropped = images_of(*open_image_set(options().output, 0, 0, {.resized_crop = true, .seed = 1}), 2);
  import_image_folder(options(ImageStorage::encoded), {});
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.image_size = 12})), decoded);
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.resized_crop = true, .seed = 1}), 2), cropped);
  // Already of the requested size: as stored.
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.image_size = 16})),
            images_of(*open_image_set(options().output)));
}

TEST_F(ImageFolder, BadImagesAreListedAndSkippedOnlyOnRequest) {
  put_classes();
  const std::string good = smooth_jpeg(16, 16, 7);
  put("in/cat/cut.jpg", good.substr(0, good.size() - 30));
  put("in/cat/text.jpg", "no image");
  put("in/cat/empty.jpg", "");
  put("in/cat/bomb.jpg", with_size(good, 20000, 20000));
  put("in/cat/picture.png", "\x89PNG");
  fs::create_symlink("nowhere", folder_ / "in/cat/link.jpg");
  const Thrown thrown = thrown_by([&] { import_image_folder(options(), {}); });
  EXPECT_EQ(entry(thrown.code).code, "data_image");
  for (const char* part : {"6 of 11 images", "--skip-bad", "cut.jpg: Premature end", "text.jpg: Not a JPEG",
                           "empty.jpg: it is empty", "bomb.jpg: its 20000 x 20000 pixels",
                           "picture.png: its name is not that of a JPEG file", "link.jpg: it is not a file"})
    EXPECT_TRUE(thrown.contains(part)) << part << " is not in: " << thrown.text;
  EXPECT_FALSE(fs::exists(options().output));
  ImageFolderOptions skipping = options();
  skipping.skip_bad = true;
  const ImportResult result = import_image_folder(skipping, {});
  EXPECT_EQ(result.skipped.size(), 6u);
  EXPECT_EQ(result.info.n_samples, 5);
}

TEST_F(ImageFolder, RejectsOtherFolders) {
  EXPECT_ERROR(ErrorCode::data_source, "does not exist", import_image_folder(options(), {}));
  fs::create_directories(folder_ / "in");
  EXPECT_ERROR(ErrorCode::data_source, "contains no folders", import_image_folder(options(), {}));
  fs::create_directories(folder_ / "in/cat");
  EXPECT_ERROR(ErrorCode::data_source, "contains no images", import_image_folder(options(), {}));
  put("other/train/cat/1.jpg", smooth_jpeg(8, 8));
  put("other/val/cat/1.jpg", smooth_jpeg(8, 8));
  ImageFolderOptions splits = options();
  splits.source = folder_ / "other";
  EXPECT_ERROR(ErrorCode::data_source, "contains the splits train, val", import_image_folder(splits, {}));
  splits.source = folder_ / "other/train/cat/1.jpg";
  EXPECT_ERROR(ErrorCode::data_source, "is a file", import_image_folder(splits, {}));
}

TEST_F(ImageFolder, TinyImageNet) {
  put("in/tiny-imagenet-200/wnids.txt", "n3\nn1\r\nn2\n");
  for (const char* wnid : {"n1", "n2", "n3"})
    for (const char* image : {"_0.JPEG", "_1.JPEG"})
      put(std::string("in/tiny-imagenet-200/train/") + wnid + "/images/" + wnid + image, smooth_jpeg(8, 8, wnid[1]));
  put("in/tiny-imagenet-200/val/images/val_0.JPEG", smooth_jpeg(8, 8, 1));
  put("in/tiny-imagenet-200/val/images/val_1.JPEG", smooth_jpeg(8, 8, 2));
  put("in/tiny-imagenet-200/val/val_annotations.txt", "val_1.JPEG\tn3\t0\t0\t5\t5\nval_0.JPEG\tn1\t0\t0\t5\t5\n");
  const ImportResult train = import_tiny_imagenet(options(), {});
  EXPECT_EQ(train.info.class_names, (std::vector<std::string>{"n1", "n2", "n3"}));
  EXPECT_EQ(train.samples_per_class, (std::vector<std::int64_t>{2, 2, 2}));
  ImageFolderOptions validation = options();
  validation.split = "val";
  EXPECT_EQ(import_tiny_imagenet(validation, {}).samples_per_class, (std::vector<std::int64_t>{1, 0, 1}));
  const InputFile file(validation.output);
  EXPECT_EQ(read_labels(file, open_image_file(file)), (std::vector<std::int32_t>{2, 0}));

  validation.split = "test";
  EXPECT_ERROR(ErrorCode::usage, "have no labels", import_tiny_imagenet(validation, {}));
  validation.split = "val";
  put("in/tiny-imagenet-200/val/val_annotations.txt", "val_1.JPEG n3\n");
  EXPECT_ERROR(ErrorCode::data_source, "val_annotations.txt:1: expected an image",
               import_tiny_imagenet(validation, {}));
  put("in/tiny-imagenet-200/val/val_annotations.txt", "absent.JPEG\tn3\n");
  EXPECT_ERROR(ErrorCode::data_image, "absent.JPEG", import_tiny_imagenet(validation, {}));
}

TEST_F(ImageFolder, ADamagedImageIsReportedWithFileAndSample) {
  put_classes();
  import_image_folder(options(ImageStorage::encoded), {});
  const InputFile file(options().output);
  const ImageFile layout = open_image_file(file);
  const std::uint64_t third = read_offsets(file, layout)[3];
  overwrite(options().output, layout.images.offsets[0] + third, std::as_bytes(std::span("no JPEG any more")));
  const auto set = open_image_set(options().output, 2, 5);
  std::vector<std::uint8_t> image(set->info().image_bytes());
  std::int32_t label = 0;
  set->read_image(0, 0, image, label);
  EXPECT_ERROR(ErrorCode::data_image, "out.h5: sample 3 cannot be decoded", set->read_image(1, 0, image, label));
  set->read_image(2, 0, image, label);
  EXPECT_EQ(label, 2);
  EXPECT_EQ(verify_image_file(InputFile(options().output), layout, {}).size(), 1u);
}

// Chunks of 100 bytes: every image is stored in several chunks, with or without gaps between them.
TEST_F(ImageFolder, JpegBytesInChunksGiveTheSameImages) {
  put_classes();
  ImageFolderOptions o = options(ImageStorage::encoded);
  o.placement.chunk_bytes = 0;
  import_image_folder(o, {});
  const auto images = images_of(*open_image_set(o.output));
  const std::string xxh3 = open_image_file(InputFile(o.output)).images_xxh3;
  for (const std::uint64_t alignment_bytes : {0, 64, 4}) {
    o.placement = {.alignment_bytes = alignment_bytes, .chunk_bytes = 100};
    import_image_folder(o, {});
    const InputFile file(o.output);
    const ImageFile layout = open_image_file(file);
    EXPECT_TRUE(layout.encoded && layout.images.chunked());
    EXPECT_EQ(layout.images_xxh3, xxh3);
    EXPECT_TRUE(verify_image_file(file, layout, {}).empty());
    EXPECT_EQ(images_of(*open_image_set(o.output)), images);
    EXPECT_EQ(images_of(*open_image_set(o.output, 1, 3)), (std::vector{images[1], images[2]}));
  }
  o.placement = {.alignment_bytes = 128, .chunk_bytes = 100};
  EXPECT_ERROR(ErrorCode::usage, "smaller than --alignment", import_image_folder(o, {}));
}

TEST_F(ImageFolder, LargeDataBeginAtMultiplesOfTheAlignment) {
  constexpr std::uint64_t kAlignment = 64 << 10;
  for (int i = 0; i < 6; ++i) put("in/a/" + std::to_string(i) + ".jpg", smooth_jpeg(128, 128, i));
  for (const ImageStorage storage : {ImageStorage::decoded, ImageStorage::encoded}) {
    ImageFolderOptions o = options(storage);
    o.placement.alignment_bytes = storage == ImageStorage::decoded ? kAlignment : 4096;
    import_image_folder(o, {});
    const InputFile file(o.output);
    EXPECT_EQ(open_image_file(file).images.offsets[0] % o.placement.alignment_bytes, 0u);
  }
}

}  // namespace
}  // namespace lockstep::data
