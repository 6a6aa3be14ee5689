// The coefficient by which ClipNorm multiplies a step's gradients if the norm is not limited.
#pragma once

#include <vector>

#include "lockstep/ops/clip_norm.h"
#include "test/support/device.h"

namespace lockstep::test {

inline double clip_coefficient(Backend& backend, const std::vector<float>& gradients, const LossSums& sums,
                               double nominal_count) {
  Device device(backend);
  const auto op = backend.make(ClipNormDescription{.n_elements = gradients.size()});
  StepScalars scalars;
  scalars.nominal_count = nominal_count;
  ClipNorm::SumTiles tiles{.gradients = device.upload(gradients), .tile_sums = nullptr, .range = {0, gradients.size()}};
  tiles.tile_sums = device.garbage<double>(n_tiles_of(gradients.size()));
  op->sum_tiles(tiles, device.stream());
  ClipNorm::Apply apply;
  apply.tile_sums = tiles.tile_sums;
  apply.sums = device.upload(std::vector<LossSums>{sums});
  apply.scalars = device.upload(std::vector<StepScalars>{scalars});
  apply.norm = device.garbage<double>(1);
  op->apply(apply, device.stream());
  return device.download(apply.scalars, 1)[0].clip_coefficient;
}

}  // namespace lockstep::test
