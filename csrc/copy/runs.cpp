#include "copy/runs.h"

namespace kvarter {

void Runs::clear() {
  engine.clear();
  slot.clear();
  bytes.clear();
  total = 0;
}

void Runs::add(const Blocks& blocks, std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    auto at_slot = reinterpret_cast<DevicePointer>(copy.slot);
    for (const Blocks::Segment& segment : blocks.segments()) {
      const auto at_engine =
          reinterpret_cast<DevicePointer>(segment.base) + copy.engine_block * segment.block_stride;
      if (!bytes.empty() && engine.back() + bytes.back() == at_engine &&
          slot.back() + bytes.back() == at_slot) {
        bytes.back() += segment.bytes;
      } else {
        engine.push_back(at_engine);
        slot.push_back(at_slot);
        bytes.push_back(segment.bytes);
      }
      at_slot += segment.bytes;
      total += segment.bytes;
    }
  }
}

}  // namespace kvarter
