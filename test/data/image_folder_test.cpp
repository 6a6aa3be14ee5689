// Imports of JPEG files: class folders and Tiny ImageNet, stored decoded and as JPEG bytes, and the messages for other
// folders.
#include "data/import.h"

#include <gtest/gtest.h>

#include "data/image_decoder.h"
#include "data/image_files.h"
#include "test/data/files.h"
#include "test/data/jpeg_files.h"
#include "test/data/png_files.h"

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
  EXPECT_TRUE(verify_image_file(file, layout, {}).is_valid());
  // Reading a range of the samples.
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
  EXPECT_ERROR(ErrorCode::model_mismatch, "set data.image_size", open_image_set(options().output));
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
  EXPECT_ERROR(ErrorCode::usage, "requires images of one size",
               import_image_folder(options(ImageStorage::decoded), {}));
  EXPECT_ERROR(ErrorCode::usage, "use --store encoded", import_image_folder(options(ImageStorage::decoded), {}));
}

TEST_F(ImageFolder, AShortSideKeepsTheAspectRatio) {
  put_classes();
  put("in/zebra/large.jpg", smooth_jpeg(120, 91, 5));
  put("in/zebra/wide.png", small_png(20, 77, 6));
  ImageFolderOptions shrunk = options(ImageStorage::decoded);
  shrunk.short_side = 18;
  const ImportResult result = import_image_folder(shrunk, {});
  EXPECT_NE(result.storage.find("decoded, with a shorter side of at most 18 pixels"), std::string::npos);
  const ImageFile layout = open_image_file(InputFile(shrunk.output));
  ASSERT_TRUE(layout.encoded && layout.encoded->is_decoded);
  using Size = std::array<std::int32_t, 2>;
  const Size small{16, 16};  // kept as it is, since its shorter side is not longer
  const std::vector<Size> expected{small, small, small, small, {23, 18}, {18, 69}, small};
  EXPECT_EQ(read_sizes(InputFile(shrunk.output), layout), expected);
  EXPECT_TRUE(verify_image_file(InputFile(shrunk.output), layout, {}).is_valid());
  // The pixels are those of the decoded image, resized as by Pillow.
  std::vector<std::uint8_t> png;
  for (int i = 0; i < 20 * 77 * 3; ++i)
    png.push_back(static_cast<std::uint8_t>(png_value(i / 231, i / 3 % 77, i % 3, 6)));
  std::vector<std::uint8_t> resized(18 * 69 * 3), stored(resized.size());
  Resizer().resize({png.data(), 20, 77, 3, 77 * 3}, {0, 0, 77, 20}, 18, 69, resized);
  const InputFile file(shrunk.output);
  file.read(layout.images.offsets[0] + read_offsets(file, layout)[5], std::as_writable_bytes(std::span(stored)), "");
  EXPECT_EQ(stored, resized);
  // Mean and standard deviation are those of the stored pixels.
  std::vector<std::uint8_t> all(layout.images.size_bytes);
  file.read(layout.images.offsets[0], std::as_writable_bytes(std::span(all)), "");
  ChannelSums sums;
  sums.add(all.data(), static_cast<std::int64_t>(all.size() / 3));
  EXPECT_EQ(layout.info.mean, (std::vector{sums.mean(0), sums.mean(1), sums.mean(2)}));
  const std::string bytes = read_all(shrunk.output);
  shrunk.storage = ImageStorage::automatic;
  import_image_folder(shrunk, {});
  EXPECT_EQ(read_all(shrunk.output), bytes);
  shrunk.storage = ImageStorage::encoded;
  EXPECT_ERROR(ErrorCode::usage, "use --store decoded", import_image_folder(shrunk, {}));
}

// Decoding at half the size first must not change the image: the tolerance covers JPEG's own loss.
TEST_F(ImageFolder, ScaledDecodingKeepsTheImage) {
  put("in/a/1.jpg", encode_jpeg(smooth_pixels(64, 64, 3, 1), 64, 64));
  std::vector<std::uint8_t> ramp;
  for (int i = 0; i < 256 * 320; ++i)
    for (int c = 0; c < 3; ++c) ramp.push_back(static_cast<std::uint8_t>(c == 1 ? i / 320 : i % 320 * 3 / 4));
  put("in/a/2.jpg", encode_jpeg(ramp, 256, 320));
  import_image_folder(options(ImageStorage::encoded), {});
  const auto images = images_of(*open_image_set(options().output, 1, 2, {.image_size = 28}));  // decoded to 1/8: 32 px
  std::vector<std::uint8_t> whole(28 * 28 * 3);
  Resizer().resize({ramp.data(), 256, 320, 3, 960}, centre_box(256, 320, 28), 28, 28, whole);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(images[0][i], whole[i], 3) << i;
}

TEST_F(ImageFolder, DecodedSetsAreResizedToo) {
  put_classes();
  import_image_folder(options(), {});
  const auto decoded =
      images_of(*open_image_set(options().output, 0, 0, {.image_size = 12}));  // decoded to 16 pixels: 8 are too few
  const auto cropped = images_of(*open_image_set(options().output, 0, 0, {.resized_crop = true, .seed = 1}), 2);
  import_image_folder(options(ImageStorage::encoded), {});
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.image_size = 12})), decoded);
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.resized_crop = true, .seed = 1}), 2), cropped);
  // Images that already have the requested size are returned as stored.
  EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.image_size = 16})),
            images_of(*open_image_set(options().output)));
}

TEST_F(ImageFolder, ALinkToItselfIsNamed) {
  put_classes();
  fs::create_symlink("..", folder_ / "in/cat/up");  // not followed: an import ends
  import_image_folder(options(), {});
  fs::create_symlink("loop", folder_ / "in/loop");
  EXPECT_ERROR(ErrorCode::data_source, "in/loop: Too many levels of symbolic links",
               import_image_folder(options(), {}));
}

TEST_F(ImageFolder, BadImagesAreListedAndSkippedOnlyOnRequest) {
  put_classes();
  const std::string good = smooth_jpeg(16, 16, 7);
  put("in/cat/cut.jpg", good.substr(0, good.size() - 30));
  put("in/cat/text.jpg", "no image");
  put("in/cat/empty.jpg", "");
  put("in/cat/bomb.jpg", with_size(good, 20000, 20000));
  put("in/cat/picture.tif", "II");
  fs::create_symlink("nowhere", folder_ / "in/cat/link.jpg");
  const Thrown thrown = thrown_by([&] { import_image_folder(options(), {}); });
  EXPECT_EQ(entry(thrown.code).code, "data_source");
  for (const char* part :
       {"6 of 11 images", "--skip-bad", "cut.jpg: Premature end", "text.jpg: it is neither a JPEG nor a PNG file",
        "empty.jpg: it is empty", "bomb.jpg: its 20000 x 20000 pixels",
        "picture.tif: its name is not that of a JPEG or PNG file", "link.jpg: it is not a file"})
    EXPECT_TRUE(thrown.contains(part)) << part << " is not in: " << thrown.text;
  EXPECT_FALSE(fs::exists(options().output));
  ImageFolderOptions skipping = options();
  skipping.skip_bad = true;
  const ImportResult result = import_image_folder(skipping, {});
  EXPECT_EQ(result.skipped.size(), 6u);
  EXPECT_EQ(result.info.n_samples, 5);
}

TEST_F(ImageFolder, PngAndJpegInOneSet) {
  put("in/a/1.png", small_png(16, 16, 1));
  put("in/a/2.jpg", smooth_jpeg(16, 16, 2));
  put("in/b/3.PNG", small_png(16, 16, 3, 1));
  put("in/b/4.jpg", small_png(16, 16, 4));  // the content decides, not the name
  import_image_folder(options(), {});
  const auto decoded = images_of(*open_image_set(options().output));
  ASSERT_EQ(decoded.size(), 4u);
  for (const int seed : {1, 3, 4})
    for (int i = 0; i < 16 * 16 * 3; ++i)
      ASSERT_EQ(decoded[static_cast<std::size_t>(seed - 1)][static_cast<std::size_t>(i)],
                png_value(i / 48, i / 3 % 16, seed == 3 ? 0 : i % 3, seed));
  const ImageSetInfo info = open_image_file(InputFile(options().output)).info;
  const ImportResult encoded = import_image_folder(options(ImageStorage::encoded), {});
  EXPECT_NE(encoded.storage.find("of JPEG and PNG bytes"), std::string::npos) << encoded.storage;
  EXPECT_EQ(encoded.info.mean, info.mean);
  const ImageFile layout = open_image_file(InputFile(options().output));
  EXPECT_EQ(layout.encoded->formats, "jpeg, png");
  EXPECT_EQ(layout.info.channels, 3);
  EXPECT_EQ(images_of(*open_image_set(options().output)), decoded);
}

TEST_F(ImageFolder, GreyImagesHaveOneChannel) {
  put("in/a/1.png", small_png(16, 12, 1, 1));
  put("in/a/2.jpg", smooth_jpeg(16, 12, 2, {.channels = 1}));
  put("in/b/3.png", small_png(16, 12, 3, 1));
  for (const ImageStorage storage : {ImageStorage::decoded, ImageStorage::encoded}) {
    const ImportResult result = import_image_folder(options(storage), {});
    EXPECT_NE(result.channels.find("all images are grey"), std::string::npos);
    EXPECT_EQ(result.info.mean.size(), 1u);
    const auto set = open_image_set(options().output);
    EXPECT_EQ(set->info().channels, 1);
    const auto images = images_of(*set);
    for (int i = 0; i < 16 * 12; ++i)
      ASSERT_EQ(images[2][static_cast<std::size_t>(i)], png_value(i / 12, i % 12, 0, 3));
    EXPECT_EQ(images_of(*open_image_set(options().output, 0, 0, {.image_size = 8})).size(), 3u);
  }
  // Three channels as requested, or as implied by the given statistics.
  ImageFolderOptions three = options();
  three.channels = 3;
  const ImportResult rgb = import_image_folder(three, {});
  EXPECT_EQ(rgb.info.mean.size(), 3u);
  EXPECT_EQ(rgb.info.mean[0], rgb.info.mean[2]);
  EXPECT_EQ(rgb.channels, "");
  three.channels = 0;
  three.mean = three.stddev = {0.5f, 0.5f, 0.5f};
  EXPECT_EQ(import_image_folder(three, {}).info.channels, 3);
  three.mean = three.stddev = {0.5f, 0.5f};
  EXPECT_ERROR(ErrorCode::usage, "--mean requires one value for grey images or three", import_image_folder(three, {}));
  // One colour image makes it a colour set, unless grey is requested.
  put("in/b/4.png", small_png(16, 12, 4));
  EXPECT_EQ(import_image_folder(options(), {}).info.channels, 3);
  ImageFolderOptions grey = options(ImageStorage::encoded);
  grey.channels = 1;
  EXPECT_EQ(import_image_folder(grey, {}).info.channels, 1);
  EXPECT_EQ(open_image_file(InputFile(options().output)).encoded->formats, "jpeg, png");
}

TEST_F(ImageFolder, ReadsImageFilesLikeASet) {
  const std::vector<std::string> names = {"in/a/1.png", "in/a/2.jpg", "in/a/3.jpg"};
  put(names[0], small_png(40, 30, 1));
  put(names[1], smooth_jpeg(300, 200, 2));
  put(names[2], smooth_jpeg(20, 20, 3, {.channels = 1}));
  import_image_folder(options(ImageStorage::encoded), {});
  std::vector<std::string> paths = list_files(folder_ / "in", has_image_name);
  ASSERT_EQ(paths.size(), 3u);
  auto set = images_of(*open_image_set(options().output, 0, 0, {.image_size = 16}));
  for (auto& image : set) image.back() = 0xff;  // the last byte of the label -1
  paths.push_back(folder_ / "none.png");
  put("in/cut.png", small_png(16, 16, 5).substr(0, 60));
  paths.push_back(folder_ / "in/cut.png");
  put("in/same.png", small_png(16, 16, 6));
  paths.push_back(folder_ / "in/same.png");
  const ImageFiles files(paths, {.height = 16, .width = 16, .channels = 3, .resize = default_resize(16)});
  const auto images = images_of(files);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(images[i], set[i]) << i;
  EXPECT_EQ(files.problem(0), "");
  EXPECT_NE(files.problem(3).find("No such file"), std::string::npos) << files.problem(3);
  EXPECT_EQ(files.problem(4), "Premature end of PNG file");
  EXPECT_EQ(files.problem(5), "");
  EXPECT_EQ(images[5][3], png_value(0, 1, 0, 6)) << "an image that has the size is not resized";
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

TEST_F(ImageFolder, NamesOfClassesAreUtf8) {
  put_classes();
  put("in/caf\xe9/1.jpg", smooth_jpeg(16, 16));
  EXPECT_ERROR(ErrorCode::data_source, "in/caf\\xe9: rename it", import_image_folder(options(), {}));
  EXPECT_FALSE(fs::exists(options().output));
  fs::rename(folder_ / "in/caf\xe9", folder_ / "in/café");
  EXPECT_EQ(import_image_folder(options(), {}).info.class_names[0], "café");
  put("in/tiny-imagenet-200/wnids.txt", "n1\nn\xe9\n");
  EXPECT_ERROR(ErrorCode::data_source, "wnids.txt: expected text in UTF-8", import_tiny_imagenet(options(), {}));
  // The name of the source is only a description.
  fs::rename(folder_ / "in", folder_ / "in\xff");
  fs::remove_all(folder_ / "in\xff/tiny-imagenet-200");
  ImageFolderOptions renamed = options();
  renamed.source = folder_ / "in\xff";
  import_image_folder(renamed, {});
  EXPECT_EQ(open_image_file(InputFile(renamed.output)).source, "image folder in\xEF\xBF\xBD");
}

TEST_F(ImageFolder, NeverReplacesItsSources) {
  put_classes();
  const std::string image = folder_ / "in/cat/b.jpg", bytes = read_all(image);
  ImageFolderOptions onto = options();
  onto.output = folder_ / "in/zebra/../cat/b.jpg";
  EXPECT_ERROR(ErrorCode::usage, "is an input of this command", import_image_folder(onto, {}));
  fs::create_symlink(image, folder_ / "link.h5");
  fs::create_hard_link(image, folder_ / "hard.h5");
  for (const char* name : {"link.h5", "hard.h5"}) {
    onto.output = folder_ / name;
    EXPECT_ERROR(ErrorCode::usage, "give the output another name", import_image_folder(onto, {}));
  }
  EXPECT_TRUE(read_all(image) == bytes);
  put("in/wnids.txt", "n1\n");
  put("in/train/n1/images/1.jpg", bytes);
  onto.output = folder_ / "in/wnids.txt";
  EXPECT_ERROR(ErrorCode::usage, "is an input of this command", import_tiny_imagenet(onto, {}));
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
  EXPECT_ERROR(ErrorCode::data_source, "absent.JPEG", import_tiny_imagenet(validation, {}));
}

TEST_F(ImageFolder, TinyImageNetWhoseValidationImagesAreSortedIntoClasses) {
  for (const char* wnid : {"n2", "n1"})
    for (const char* folder : {"/train/", "/val/"})
      put(std::string("in") + folder + wnid + "/" + wnid + ".JPEG", smooth_jpeg(8, 8, wnid[1]));
  put("in/val/n1/images/another.JPEG", smooth_jpeg(8, 8, 3));
  put("in/val/val_annotations.txt", "what remains of the original");
  const ImportResult train = import_tiny_imagenet(options(), {});
  EXPECT_EQ(train.info.class_names, (std::vector<std::string>{"n1", "n2"}));
  ImageFolderOptions validation = options();
  validation.split = "val";
  EXPECT_EQ(import_tiny_imagenet(validation, {}).samples_per_class, (std::vector<std::int64_t>{2, 1}));
  fs::remove_all(folder_ / "in/train");
  EXPECT_EQ(import_tiny_imagenet(validation, {}).info.class_names, train.info.class_names);
  put("in/wnids.txt", "n1\nn2\nn3\n");
  EXPECT_ERROR(ErrorCode::data_source, "n3 is not a folder", import_tiny_imagenet(validation, {}));
}

TEST_F(ImageFolder, TheOriginalValidationSplitOfTinyImageNetIsNoImageFolder) {
  put("in/images/val_0.JPEG", smooth_jpeg(8, 8, 1));
  put("in/val_annotations.txt", "val_0.JPEG\tn3\n");
  EXPECT_ERROR(ErrorCode::data_source, "lockstep data import tiny-imagenet " + folder_.path() + "/ ",
               import_image_folder(options(), {}));
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
  EXPECT_ERROR(ErrorCode::data_damaged, "out.h5: sample 3 cannot be decoded", set->read_image(1, 0, image, label));
  set->read_image(2, 0, image, label);
  EXPECT_EQ(label, 2);
  EXPECT_EQ(verify_image_file(InputFile(options().output), layout, {}).damaged.size(), 1u);
}

// Chunks of 100 bytes: every image spans several chunks, with or without gaps between them.
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
    EXPECT_TRUE(verify_image_file(file, layout, {}).is_valid());
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
