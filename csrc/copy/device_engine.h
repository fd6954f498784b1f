#pragma once
#include <memory>
#include <string>

#include "copy/driver.h"
#include "kvarter/copy.h"

namespace kvarter {

// make_cuda_copy_engine over any driver.
std::shared_ptr<CopyEngine> make_device_engine(std::string name, std::shared_ptr<const Driver> driver,
                                               const DeviceOptions& options);

}  // namespace kvarter
