#pragma once
// What the engine's thread owns: the worker, the connections, what comes in and what goes out. Everything
// here happens on that thread; others hand it tasks.
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kvarter/ucx/endpoint.h"
#include "kvarter/ucx/engine.h"
#include "ucx/receiver.h"
#include "ucx/sender.h"

namespace kvarter::ucx {

using Task = std::packaged_task<void()>;

// Tasks for the thread, from any thread.
class Tasks {
 public:
  Tasks();
  ~Tasks();

  // False, and the task is dropped: the thread takes none any more.
  bool push(Task task);
  std::vector<Task> take();
  // Refuses what comes from now on.
  void close();
  // Readable when there may be a task.
  int fd() const noexcept { return fd_; }
  void drain() noexcept;

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<Task> tasks_;
  bool closed_ = false;
};

class Loop {
 public:
  // Throws as Engine does.
  Loop(std::span<std::byte> memory, const Options& options, Tasks& tasks, Events& events, Counters& counters);
  ~Loop();

  std::vector<std::byte> address() const { return worker_.address(); }
  std::vector<std::string> transports() const { return context_.transports(); }

  // Until stop(), and then until every connection has ended. No task is taken any more then.
  void run();
  void stop();
  void connect(PeerId peer, std::span<const std::byte> address, std::uint64_t send_token,
               std::uint64_t receive_token, Queued queued);
  void close_peer(PeerId peer);
  Receiver& receiver() { return receiver_; }
  Sender& sender() { return sender_; }

 private:
  struct Connection;

  bool run_tasks();
  // Goes on with ending the connections that have failed or are being closed.
  void end_some();
  void sleep();

  Tasks& tasks_;
  Events& events_;
  Counters& counters_;
  const std::chrono::microseconds spin_;
  Receiver receiver_;
  Sender sender_;
  std::map<PeerId, std::unique_ptr<Connection>> connections_;
  std::vector<PeerId> ending_;
  bool stopping_ = false;
  Context context_;
  Memory memory_;
  Worker worker_;
  int poll_fd_;
};

}  // namespace kvarter::ucx
