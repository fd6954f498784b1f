#include "disk_account.h"

namespace kvarter::bindings {

py::dict to_dict(const DiskLedger& l) {
  py::dict d;
  d["capacity"] = l.capacity;
  d["free"] = l.free;
  d["reserved"] = l.reserved;
  d["leased"] = l.leased;
  d["resident"] = l.resident;
  d["dead"] = l.dead;
  d["overhead"] = l.overhead;
  return d;
}

py::dict to_dict(const DiskCounters& n) {
  py::dict d;
  d["offered"] = n.offered;
  d["stored"] = n.stored;
  d["recovered"] = n.recovered;
  d["queued"] = n.queued;
  d["resident_blocks"] = n.resident_blocks;
  d["asked"] = n.asked;
  d["loaded"] = n.loaded;
  d["loading"] = n.loading;
  d["stored_bytes"] = n.stored_bytes;
  d["loaded_bytes"] = n.loaded_bytes;
  d["reinserted_bytes"] = n.reinserted_bytes;
  d["device_bytes"] = n.device_bytes;
  d["queued_bytes"] = n.queued_bytes;
  d["last_sequence"] = n.last_sequence;
  d["durable_sequence"] = n.durable_sequence;
  d["undurable_bytes"] = n.undurable_bytes;
  d["segments"] = n.segments;
  d["bad_segments"] = n.bad_segments;
  d["cleaned_segments"] = n.cleaned_segments;
  d["syncs"] = n.syncs;
  d["io_errors"] = n.io_errors;
  d["write_amplification"] = n.write_amplification();
  py::dict reasons, not_loaded;
  for (int r = 1; r < static_cast<int>(DiskReason::kCount); ++r) {
    reasons[name(static_cast<DiskReason>(r))] = n.reasons[r];
    not_loaded[name(static_cast<DiskReason>(r))] = n.not_loaded[r];
  }
  d["reasons"] = reasons;
  d["not_loaded"] = not_loaded;
  return d;
}

py::dict to_dict(const DiskReport& r) {
  py::dict d;
  d["version"] = r.version;
  d["segment_bytes"] = r.segment_bytes;
  d["file_bytes"] = r.file_bytes;
  d["owner"] = r.owner;
  d["segments"] = r.segments;
  d["sealed"] = r.sealed;
  d["unsealed"] = r.unsealed;
  d["empty"] = r.empty;
  d["damaged"] = r.damaged;
  d["namespaces"] = r.namespaces;
  d["invalidated"] = r.invalidated;
  d["blocks"] = r.blocks;
  d["bytes"] = r.bytes;
  d["verified"] = r.verified;
  d["corrupt"] = r.corrupt;
  d["findings"] = r.findings;
  return d;
}

}  // namespace kvarter::bindings
