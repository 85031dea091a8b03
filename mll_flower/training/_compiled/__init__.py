"""Gradients and outputs of plain stacks of layers, by machine code that is made for the stack.

Why it pays: on mini-batches of a few dozen small images PyTorch takes about four times as long
as the multiplications themselves would. Its kernels are made for any layer and any size; here
they are made for one network, whose sizes are constants. No C compiler is needed: see
`mll_flower.native`. Modules that are not such stacks are left to autograd.

**What is covered.** Modules that apply one after another Conv2d (stride 1, square kernel, zero
padding), MaxPool2d after a convolution (pools side by side), ReLU, Dropout, Flatten and Linear,
with cross-entropy, in float32. torch.fx finds the layers (`layers`) in an ``nn.Sequential`` or in
the ``forward`` of a class, which must have no conditions (`conditions`). They become *stages*
(`stages`): a convolution with the pooling and the ReLU after it, or a linear layer with its ReLU,
and dropout at the end. A log-softmax after the last layer changes neither the cross-entropy nor its
gradient, and only evaluations compute it. `stages.read_stack` says what is in the way otherwise.

**Memory.** Sixteen samples form a *group*, and a vector holds one number of each of its samples:
activations lie as [group][channel][row][column][sample]. So every layer has full vectors
whatever its sizes, and a weight is one number that multiplies a vector. Inputs of convolutions
have a border of zeros, which is written once. The last group of a batch is filled up with
copies of its first sample, whose gradient is set to zero. All of this is in one workspace, whose
layout is made in `workspace`; the code holds for any batch size. The model and its gradient are
the flat vectors of the trainer, in PyTorch's order.

**The kernels**, in the order in which they run. Evaluations (`outputs`) run the first two alone:

- *gather* (`batch_kernels`): copy the rows of the batch into lanes, sixteen by sixteen transposed.
- *forward*: a convolution computes all positions of a pooling window together, for as many
  channels as the registers hold. Bias, maximum and ReLU are applied before anything is written,
  along with the place of the maximum in its window.
- *dropout* (`dropout_kernels`), in training alone: each entry is multiplied by 0, or by what keeps
  the mean. Going back, the same factors are computed again from the step's random bits.
- *loss* (`batch_kernels`): softmax, cross-entropy, and the gradient with respect to the logits.
- *backward*, from the last stage to the first. Gradients of biases are sums over groups and
  positions (`linear_kernels`). Gradients of a linear layer's weights have the weights in the lanes,
  from samples that are transposed back. Those of a convolution's weights (`convolution_kernels`)
  have samples in the lanes, which are added up at the end. Where a pool follows, its gradient is
  spread out a few rows at a time, so that it stays in the cache. The gradient with respect to the
  input is a convolution with the flipped kernel, and passes the ReLU before it on the way to
  memory.
- *backward of a pooled convolution* (`pooled_kernels`), if the rows of its kernel fill vectors: at
  most one entry of a pool is not zero, so these are listed and the rest is left out. Columns and
  channels are in the lanes.

**Bits.** Every sum has one order, written down in the code, and every product in a sum is a fused
multiply-add. The result depends neither on the CPU's vector length, nor on addresses, nor on
which process computes it; it differs from autograd's in the last bits only.
"""
