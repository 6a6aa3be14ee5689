// A trained ResNet in the ONNX format, for other programs that run models (onnx.proto is its schema).
//
// Input "image": (N, channels, H, W) fp32, values from 0 to 1, colours in the order RGB. The first nodes normalise it
// with the mean and the standard deviation of the model. Output "logits": (N, classes) fp32, before the softmax. N is
// free. Weights have torchvision's names. Batch norms are nodes of their own: programs that run ONNX files fold them
// into the convolutions.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "lockstep/shape.h"

namespace lockstep::models {

struct OnnxTensor {
  Shape shape;
  std::vector<float> values;
};

struct OnnxOptions {
  int height = 0, width = 0;  // pixels
  std::vector<float> mean,
      stddev;  // of each channel, for values from 0 to 1; both empty: the input is normalised already
  double batch_norm_epsilon = 1e-5;
  std::string producer_version;                 // of Lockstep
  std::map<std::string, std::string> metadata;  // texts that programs can read from the file
};

/// The bytes of the file. `tensor` finds a weight or running statistic; it throws if there is none.
std::string resnet_onnx(const Config::Model& model, const OnnxOptions& options,
                        const std::function<OnnxTensor(const std::string& name)>& tensor);

}  // namespace lockstep::models
