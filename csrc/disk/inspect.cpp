// What the command line does to a directory: look, verify, clear.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>

#include "disk/directory.h"
#include "disk/manifest.h"
#include "disk/scan.h"
#include "kvarter/disk.h"

namespace kvarter {

using namespace disk;

namespace {

std::unique_ptr<Device> existing(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    throw std::runtime_error(path + " is not a directory");
  return make_threads_device(path, 8, "");
}

Manifest manifest_of(Device& device) {
  const int file = device.open("MANIFEST");
  if (file < 0) throw std::runtime_error(device.path() + " has no manifest: it is no disk tier's directory");
  const ManifestRead read = read_manifest(read_file(device, file, kManifestBytes));
  device.close(file);
  if (read.newer)
    throw std::runtime_error(device.path() + " has format version " + std::to_string(read.newer) +
                             ", this build knows " + std::to_string(kVersion));
  if (!read.ours) throw std::runtime_error(device.path() + " has a MANIFEST that is not a disk tier's");
  if (!read.manifest)
    throw std::runtime_error(device.path() + " has a damaged manifest: nothing in it will be served");
  return *read.manifest;
}

struct Name {
  Digest ns, digest;
  std::uint32_t group_sub;
  auto operator<=>(const Name&) const = default;
};

DiskReport report(const std::string& path, bool payloads) {
  const auto device = existing(path);
  const Manifest manifest = manifest_of(*device);
  DiskReport r;
  r.version = kVersion;
  r.segment_bytes = manifest.segment_bytes;
  r.owner = lock_holder(path);
  r.invalidated = manifest.tombstones.size();
  std::map<Name, Found> blocks;
  for (const std::string& name : device->list()) {
    const auto number = segment_number(name);
    if (!number) {
      if (!our_file(name)) r.findings.push_back(name + ": not ours");
      continue;
    }
    ++r.segments;
    const int file = device->open(name);
    const std::int64_t size = file < 0 ? 0 : device->size(file);
    r.file_bytes += static_cast<std::uint64_t>(std::max<std::int64_t>(size, 0));
    if (file < 0 || size != static_cast<std::int64_t>(manifest.segment_bytes)) {
      ++r.damaged;
      r.findings.push_back(name + ": has " + std::to_string(size) + " bytes, expected " +
                           std::to_string(manifest.segment_bytes));
      if (file >= 0) device->close(file);
      continue;
    }
    Scanned scanned = scan_segment(*device, file, *number, manifest.segment_bytes, manifest.log_id, payloads);
    device->close(file);
    if (!scanned.header) {
      ++r.damaged;
      r.findings.push_back(name + ": its header does not verify");
      continue;
    }
    ++(scanned.sealed ? r.sealed : scanned.blocks.empty() ? r.empty : r.unsealed);
    r.corrupt += scanned.corrupt;
    r.verified += scanned.verified;
    if (scanned.corrupt)
      r.findings.push_back(name + ": " + std::to_string(scanned.corrupt) + " blocks do not verify");
    for (Found& block : scanned.blocks) {
      const auto tombstone = manifest.tombstones.find(block.record.ns);
      if (block.sequence <= manifest.floor ||
          (tombstone != manifest.tombstones.end() && block.sequence <= tombstone->second))
        continue;
      const Name key{block.record.ns, block.record.digest,
                     std::uint32_t{block.record.group} << 16 | block.record.sub};
      Found& kept = blocks[key];
      if (kept.sequence < block.sequence) kept = std::move(block);
    }
  }
  // Shallow first: a block counts when its parent does.
  std::vector<const std::pair<const Name, Found>*> by_depth;
  for (const auto& block : blocks) by_depth.push_back(&block);
  std::stable_sort(by_depth.begin(), by_depth.end(), [](const auto* a, const auto* b) {
    return a->second.record.depth < b->second.record.depth;
  });
  std::set<Name> reachable;
  std::set<Digest> namespaces;
  for (const auto* block : by_depth) {
    const BlockRecord& record = block->second.record;
    const Name parent{record.ns, record.parent, std::uint32_t{record.group} << 16 | record.parent_sub};
    if (record.chained && record.depth > 0 && !reachable.contains(parent)) continue;
    reachable.insert(block->first);
    namespaces.insert(record.ns);
    ++r.blocks;
    r.bytes += block->second.bytes;
  }
  r.namespaces = namespaces.size();
  return r;
}

}  // namespace

DiskReport disk_inspect(const std::string& path) { return report(path, false); }
DiskReport disk_verify(const std::string& path) { return report(path, true); }

std::uint64_t disk_clear(const std::string& path, bool shred) {
  const auto device = existing(path);
  const int manifest = device->open("MANIFEST");
  if (manifest < 0) throw std::runtime_error(path + " has no manifest: it is no disk tier's directory");
  const bool ours = read_manifest(read_file(*device, manifest, kManifestBytes)).ours;
  device->close(manifest);
  if (!ours)
    throw std::runtime_error(path + " has a MANIFEST that is not a disk tier's; nothing was removed");
  device->lock();
  constexpr std::uint64_t kPiece = 1u << 20;
  const Aligned zeros = aligned(kPiece);
  Blocking blocking(*device);
  std::uint64_t bytes = 0;
  std::vector<std::string> files = device->list();
  // The manifest goes last: until then what is left can be cleared again.
  std::stable_partition(files.begin(), files.end(), [](const std::string& f) { return f != "MANIFEST"; });
  for (const std::string& name : files) {
    if (!our_file(name) || name == "LOCK") continue;
    const int file = device->open(name);
    if (file >= 0) {
      const std::int64_t size = std::max<std::int64_t>(0, device->size(file));
      bytes += static_cast<std::uint64_t>(size);
      bool gone = true;
      for (std::uint64_t at = 0; shred && gone && at < static_cast<std::uint64_t>(size); at += kPiece)
        gone = blocking.write(file, at, zeros.get(),
                              padded(std::min<std::uint64_t>(kPiece, static_cast<std::uint64_t>(size) - at)));
      if (shred) gone = gone && blocking.sync(file);
      device->close(file);
      if (!gone) throw std::runtime_error(path + "/" + name + " could not be overwritten; it is still there");
    }
    const int error = device->remove(name);
    if (error)
      throw std::runtime_error(path + "/" + name + " could not be removed: " + std::strerror(-error));
  }
  device->remove("LOCK");
  device->sync_directory();
  return bytes;
}

}  // namespace kvarter
