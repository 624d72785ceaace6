// Four floats that are loaded and stored together (128 bits); the same type in all three builds.
//
// Thread safety: plain values.
//
//   Vec4 v = Load4(row + 4 * i);  Store4(out + 4 * i, {v.x * s, v.y * s, v.z * s, v.w * s});
#pragma once

namespace gdn::gpu {

struct alignas(16) Vec4 {
  float x, y, z, w;
};

}  // namespace gdn::gpu
