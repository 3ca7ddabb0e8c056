// Which nodes of the graph were made in a checkpoint, and which on the way back through one.
#include "capture/record/checkpoints.h"

#include "capture/build/build.h"

namespace fastjit::capture {

// A node that several steps make is the first one's.
void GraphBuilder::mark_checkpoints() {
  if (trace_.checkpoints.empty()) return;
  const CheckpointEvents events(trace_);
  ir::Checkpoints& marks = capture.checkpoints;
  const size_t count = graph_.nodes.size();
  marks.made_in.resize(count);
  marks.back_of.resize(count);
  marks.draws.resize(count);
  for (size_t step = 0; step < analysis_.steps.size(); ++step) {
    const uint32_t event = analysis_.steps[step].event;
    for (size_t id = first_nodes_[step]; id < first_nodes_[step + 1]; ++id) {
      marks.made_in[id] = events.made_in(event);
      marks.back_of[id] = events.back_of(event);
    }
  }
  for (ir::NodeId id = 0; id < count; ++id) {
    if (graph_[id].op != ir::Op::Extern) continue;
    const ir::ExternAttr& call = graph_.externs[graph_[id].attr];
    marks.draws[id] = call.kind == ir::ExternKind::Op && capture.calls[call.call].facts.is(OpFlag::Draws);
  }
}

}  // namespace fastjit::capture
