// Which tensors a file contains: their shapes by name, "layer1.0.conv1.weight".
#pragma once

#include <map>
#include <string>

#include "lockstep/shape.h"

namespace lockstep::models {

using TensorShapes = std::map<std::string, Shape>;

}  // namespace lockstep::models
