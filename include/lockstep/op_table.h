// The table of a backend's ops. A row maps the type of a description to the function that plans its op:
//
//   constexpr OpRow<CpuContext> kOps[] = {
//       op_row<make_conv2d>(),   // std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const CpuContext&)
//   };
//
// The context is what the backend's ops know about the device. op_list.h lists the ops.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <typeinfo>

#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep {

/// A type-erased description; `type` tells its type.
struct OpRequest {
  const std::type_info& type;
  std::string_view name;  // "conv2d"
  const void* description;
};

template <typename Context>
struct OpRow {
  const std::type_info* type;
  std::unique_ptr<Op> (*make)(const void* description, const Context& context);
};

template <auto factory>
struct OpRowOf;
template <typename Planned, typename Description, typename Context,
          std::unique_ptr<Planned> (*factory)(const Description&, const Context&)>
struct OpRowOf<factory> {
  static std::unique_ptr<Op> make(const void* description, const Context& context) {
    return factory(*static_cast<const Description*>(description), context);
  }
  static constexpr OpRow<Context> row() { return {&typeid(Description), &make}; }
};

template <auto factory>
constexpr auto op_row() {
  return OpRowOf<factory>::row();
}

/// Throws not_supported if the table has no such row.
template <typename Context>
std::unique_ptr<Op> make_op(std::span<const OpRow<Context>> table, const OpRequest& request, const Context& context,
                            std::string_view backend) {
  for (const OpRow<Context>& row : table)
    if (*row.type == request.type) return row.make(request.description, context);
  fail(ErrorCode::not_supported, "the {} backend does not have the op {}", backend, request.name);
}

}  // namespace lockstep
