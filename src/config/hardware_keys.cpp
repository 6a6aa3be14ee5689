#include "config/hardware_keys.h"

#include "config/key_types.h"

namespace lockstep::config {
namespace {

constexpr Effect kNone = Effect::none;

}  // namespace

std::vector<Key> hardware_keys() {
  const Range rates{.high = 1e9, .accepts = "0 to 1e9"};
  const Range gigabytes{.high = 1e6, .accepts = "0 to 1e6"};
  return {
      integer(KEY(hardware.cores_per_rank), 0,
              {kNone, "cores", "plan: cores of a rank that can read and decode samples. 0: unknown."}),
      real(KEY(hardware.core_samples_per_second), rates,
           {kNone, "samples/s", "plan: JPEG or PNG images that one core reads, decodes and crops. 0: unknown."}),
      real(KEY(hardware.core_gb_per_second), gigabytes,
           {kNone, "GB/s", "plan: speed at which one core reads samples that are stored decoded. 0: unknown."}),
      real(KEY(hardware.core_resize_megapixels_per_second), gigabytes,
           {kNone, "Mpixel/s", "plan: output pixels of one core that resizes images stored decoded. 0: unknown."}),
      real(KEY(hardware.core_trivial_augment_megapixels_per_second), gigabytes,
           {kNone, "Mpixel/s", "plan: pixels to which one core applies trivial_augment. 0: unknown."}),
      real(KEY(hardware.core_color_jitter_megapixels_per_second), gigabytes,
           {kNone, "Mpixel/s", "plan: pixels to which one core applies data.color_jitter. 0: unknown."}),
      real(KEY(hardware.storage_gb_per_second), gigabytes,
           {kNone, "GB/s", "plan: speed at which a node reads from its storage, shared by its ranks. 0: unknown."}),
      real(KEY(hardware.pcie_gb_per_second), gigabytes,
           {kNone, "GB/s", "plan: speed at which batches are copied to the GPU of a rank. 0: unknown."}),
      real(KEY(hardware.device_samples_per_second), rates,
           {kNone, "samples/s", "plan: training speed of the device of a rank. 0: unknown."}),
  };
}

}  // namespace lockstep::config
