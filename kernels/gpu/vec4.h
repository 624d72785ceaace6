// Four floats, or two, that are loaded and stored together (128 or 64 bits); the same types in all three builds.
//
// Thread safety: plain values.
//
//   Vec4 v = Load4(row + 4 * i);  Store4(out + 4 * i, {v.x * s, v.y * s, v.z * s, v.w * s});
#pragma once

namespace gdn::gpu {

struct alignas(16) Vec4 {
  float x, y, z, w;
};
struct alignas(8) Vec2 {
  float x, y;
};

}  // namespace gdn::gpu
