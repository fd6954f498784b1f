#pragma once
// The pool: shared memory (memfd arenas) cut into extents of 4 KiB granules. It is the DRAM tier's memory and
// nothing else: it knows no keys, no leases and no time. The index decides what lives in it.
//
// Threads: Memfd, Mapping-like members and check_memory are immutable after construction. Extents is not
// synchronised; the index calls it under its writer mutex.
// When full: allocate and move return nothing and change nothing.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvarter {

inline constexpr std::uint64_t kGranule = 4096;       // every extent starts at and is rounded up to a granule
inline constexpr std::uint64_t kHugePage = 2u << 20;  // arenas are mapped at and sized to multiples of this

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The first `bytes` of a shared file in this process: at a 2 MiB-aligned address, so that huge pages of the
// file are mapped as such; not inherited by forks, so that a helper never becomes a writer nobody watches;
// not in core dumps, which would hold prompts. Ends with munmap. The one way in which the pool is mapped, by
// the node and by its clients. Throws std::system_error when the kernel refuses. REQUIRES: no fork runs at
// the same time: a child forked before the mapping is marked keeps it.
std::byte* map_shared(int fd, std::uint64_t bytes, bool writable);

// Its two steps, for who wants several files side by side: addresses that begin at a multiple of 2 MiB and
// hold nothing yet, and a file in a part of them. REQUIRES: whole pages. What fails leaves the addresses
// reserved.
std::byte* reserve_addresses(std::uint64_t bytes);
void map_shared_at(std::byte* at, int fd, std::uint64_t bytes, bool writable);

// A sealed anonymous file that processes of one uid share: mode 0600, sealed against resize, so that no
// mapper can cut it under another one's feet. With `hugetlb` it is made of reserved 2 MiB pages.
// Throws std::system_error when the kernel refuses.
class Memfd {
 public:
  Memfd(const std::string& name, std::uint64_t bytes, bool hugetlb = false);
  // Maps what another Memfd of this pool left behind, in this or in another process. Takes the descriptor
  // over; on a throw it stays the caller's. Throws std::invalid_argument for a file that is not sealed
  // against resize.
  static Memfd adopt(int fd);
  Memfd(Memfd&& other) noexcept;
  Memfd& operator=(Memfd&&) = delete;
  ~Memfd();

  int fd() const { return fd_; }
  std::uint64_t bytes() const { return bytes_; }
  // This process's mapping, read-write; see map_shared.
  std::byte* data() const { return data_; }

 private:
  Memfd(int fd, std::uint64_t bytes, std::byte* data) : fd_(fd), bytes_(bytes), data_(data) {}

  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

struct MemoryLimits {
  std::uint64_t available = 0;     // MemAvailable
  std::uint64_t cgroup_limit = 0;  // the tightest limit over this process's cgroups (v1 and v2); 0: none
  std::uint64_t cgroup_used = 0;   // of that cgroup, without page cache that can be dropped at once
};

// Reads what the system says. `root` stands before /proc and /sys (tests give a directory of their own).
MemoryLimits memory_limits(const std::string& root = "");

// Throws std::length_error, with the numbers in one sentence, when `bytes` do not fit into the memory that is
// available or into the cgroup. The kernel would not refuse: it would kill the engine later.
void check_memory(std::uint64_t bytes, const MemoryLimits& limits);

// The kinds of pages an arena can have, from the best.
enum class Pages : std::uint8_t {
  kHugetlb,    // reserved by the administrator for this use
  kThp,        // the kernel makes huge pages of shared memory when they are first touched
  kCollapsed,  // 4 KiB pages that were made into huge ones afterwards
  k4k,
};
const char* name(Pages pages) noexcept;  // "hugetlb", "thp", "collapsed", "4k"

// The best that the system gives a pool of this many bytes from the first touch on: kHugetlb when enough
// reserved pages are free, kThp when the kernel's switch for shared memory allows it, else k4k.
Pages pages_at_start(std::uint64_t bytes, const std::string& root = "");

// The NUMA nodes that are online, ascending; node 0 where the system does not say.
std::vector<int> numa_nodes(const std::string& root = "");

struct Extent {
  std::uint32_t arena = 0;
  std::uint64_t offset = 0;  // bytes from the arena's start, a multiple of kGranule
  std::uint64_t bytes = 0;   // a multiple of kGranule
};

inline constexpr std::uint32_t kNoSlot = 0xffffffff;

struct Hole {
  Extent extent;
  std::uint32_t before = kNoSlot;  // the slot that ends where this hole, or the one it touches, begins
};

// Free space of all arenas, best fit, neighbours coalesced; and the slots in the order of their addresses, so
// that whoever moves them finds what lies around a hole. A slot is a small number of the caller's own choice:
// 8 bytes are kept for each number up to the highest one used, 100 or so for each hole.
class Extents {
 public:
  explicit Extents(const std::vector<std::uint64_t>& arena_bytes);

  // For slot, the smallest hole that fits, lowest address among equals. Nothing when no hole fits.
  // REQUIRES: bytes > 0; slot has no extent.
  std::optional<Extent> allocate(std::uint64_t bytes, std::uint32_t slot);
  // REQUIRES: extent is slot's, from allocate, claim or move.
  void release(const Extent& extent, std::uint32_t slot);
  // Takes exactly this extent out of the free space (rebuild). False when any of it is taken or out of
  // bounds. REQUIRES: slot has no extent.
  bool claim(const Extent& extent, std::uint32_t slot);

  // No hole that touches the window serves allocate or move until restore: what is moved out of the window
  // must not land in it. One window at a time.
  void withhold(const Extent& window);
  void restore();
  // Another extent of the same size for slot; its old one is free. Nothing, and no change, when no hole fits.
  // REQUIRES: as release. The caller copies the bytes, before anything else is allocated.
  std::optional<Extent> move(const Extent& extent, std::uint32_t slot);

  // The slots next to this one in its arena by address, and an arena's first; kNoSlot when there is none.
  std::uint32_t before(std::uint32_t slot) const { return before_[slot]; }
  std::uint32_t after(std::uint32_t slot) const { return after_[slot]; }
  std::uint32_t after(const Hole& hole) const {
    return hole.before == kNoSlot ? first_[hole.extent.arena] : after_[hole.before];
  }

  std::uint64_t free_bytes() const { return free_; }
  std::uint64_t largest_hole() const;
  std::vector<Hole> largest(std::size_t count) const;  // the largest first
  std::vector<Extent> holes() const;                   // in address order; for the audit

 private:
  using Address = std::uint64_t;  // arena in the upper 20 bits, granule number in the lower 44
  struct Free {
    std::uint64_t granules;
    std::uint32_t before;
  };
  using Holes = std::pmr::map<Address, Free>;
  void insert(Address start, Free hole);
  void erase(Holes::iterator hole);
  bool withheld(Address start, std::uint64_t granules) const;
  void link(std::uint32_t slot, std::uint32_t before, std::uint32_t arena);

  std::pmr::unsynchronized_pool_resource nodes_;  // holes come and go with every block: no malloc for each
  Holes by_address_{&nodes_};
  std::pmr::set<std::pair<std::uint64_t, Address>> by_size_{&nodes_};  // without the withheld ones
  std::vector<std::uint32_t> before_, after_;                          // by slot
  std::vector<std::uint32_t> first_;                                   // by arena
  std::vector<std::uint64_t> arena_granules_;
  Address withheld_from_ = 0, withheld_to_ = 0;
  std::uint64_t free_ = 0;
};

// The arenas and their free space. A thread populates the arenas in the background, so that this process's
// cgroup is charged for them, and then makes huge pages of them where the system gave none (MADV_COLLAPSE:
// about 3 s of one core for each GiB). Start waits for neither; destruction stops both within 0.2 s and
// unmaps.
//
// Threads: bytes, arenas, nodes, populated and pages from any thread.
class Pool {
 public:
  // `bytes` in all, in arenas of at most `arena_bytes` (each rounded up to 2 MiB). On a machine with several
  // NUMA nodes there is at least one arena for each, and they take turns. Without `populate` pages come at
  // first touch and are never collapsed; without `huge_pages` they are of 4 KiB.
  // REQUIRES: bytes > 0. Throws as Memfd does. Check the memory first.
  Pool(std::uint64_t bytes, std::uint64_t arena_bytes, bool populate, bool huge_pages = true,
       const std::string& root = "");
  // The arenas of a pool whose process is gone, in their order and with their content. All of it counts as
  // free until an Index takes the records over.
  explicit Pool(std::vector<Memfd> arenas);
  ~Pool();
  Pool(const Pool&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  const std::vector<Memfd>& arenas() const { return arenas_; }
  // For each arena the NUMA node its pages come from while that has any free; -1 where the machine has only
  // one, or the kernel refused.
  const std::vector<int>& nodes() const { return nodes_; }
  Extents& extents() { return extents_; }
  const Extents& extents() const { return extents_; }
  bool populated() const { return populated_.load(std::memory_order_acquire); }
  // What the arenas are made of. k4k becomes kCollapsed when all of them have been collapsed.
  Pages pages() const { return pages_.load(std::memory_order_acquire); }

 private:
  void populate(bool collapse);
  bool advise_all(std::uint64_t step, int advice) const;

  std::vector<Memfd> arenas_;
  std::vector<int> nodes_;
  std::uint64_t bytes_ = 0;
  Extents extents_;
  std::atomic<bool> stop_{false}, populated_{false};
  std::atomic<Pages> pages_{Pages::k4k};
  std::thread populator_;
};

}  // namespace kvarter
