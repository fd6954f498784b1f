#pragma once
// The files of a real directory: what io_uring and threads have in common.
#include "kvarter/device.h"

namespace kvarter::disk {

class Directory : public Device {
 public:
  explicit Directory(const std::string& path);
  ~Directory() override;
  std::string reason() const override { return reason_; }
  std::string path() const override { return path_; }
  std::vector<std::string> list() override;
  void lock() override;
  int open(const std::string& name) override;
  int create(const std::string& name, std::uint64_t bytes, bool sparse) override;
  void close(int file) override;
  std::int64_t size(int file) override;
  int rename(const std::string& from, const std::string& to) override;
  int remove(const std::string& name) override;
  int sync_directory() override;
  std::uint64_t free_bytes() override;

 protected:
  void add_reason(const std::string& reason);

 private:
  int open_direct(const std::string& name, int flags);

  std::string path_, reason_;
  int directory_ = -1, lock_ = -1;
};

// Throws std::runtime_error with the kernel's word when it does not let us.
std::unique_ptr<Device> make_uring_device(const std::string& path, unsigned depth);
std::unique_ptr<Device> make_threads_device(const std::string& path, unsigned depth,
                                            const std::string& reason);
// The pid of the process that has the directory's lock; 0: nobody.
int lock_holder(const std::string& path);

}  // namespace kvarter::disk
