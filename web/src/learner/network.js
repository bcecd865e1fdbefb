// The network of 1997 and its learning rule: truncated real-time recurrent learning, one sequence at a time.
//
// x̃ = [x(t); y_ig; y_og; y_cell] of the step before; rows of W: input gates, output gates, cells; a column of biases
// comes last. The cells of a block share their gates. All values and derivatives of units come from the printed
// equations: `memory_cell` for the cells, `rnn97` for logistic units, `static` (y = a) for linear outputs.

const arrays = (names, n) => Object.fromEntries(names.map((name) => [name, new Float64Array(n)]));

export class Network {
  constructor(modules, { inputs, blocks, blockSize, outputs, output }) {
    this.cellModule = modules.memory_cell;
    this.gateModule = modules.rnn97;
    this.outModule = output === "linear" ? modules.linear : modules.rnn97;
    Object.assign(this, { inputs, blocks, blockSize, outputs });
    this.cells = blocks * blockSize;
    this.units = 2 * blocks + this.cells; // fed back: input gates, output gates, cells
    this.D = inputs + this.units + 1;
    this.W = new Float64Array(this.units * this.D);
    this.V = new Float64Array(outputs * (this.cells + 1)); // output units, bias last
    this.dW = new Float64Array(this.W.length);
    this.dV = new Float64Array(this.V.length);
    this.x = new Float64Array(this.D); // x̃ and 1
    this.net = new Float64Array(this.units);
    const { inputs: given, partials } = this.cellModule.cell;
    this.given = arrays(given, this.cells);
    this.new = arrays(["y_new", "s_new"], this.cells);
    this.d = arrays(partials.map(([o, v]) => `d_${o}_d_${v}`), this.cells);
    this.gates = { a: new Float64Array(2 * blocks) };
    this.gatesNew = { y_new: new Float64Array(2 * blocks) };
    this.out = { a: new Float64Array(outputs) };
    this.outNew = { y_new: new Float64Array(outputs) };
    this.dOut = { d_y_d_a: new Float64Array(outputs) };
    this.gateTrace = new Float64Array(this.cells * this.D); // ∂s/∂(row of the block's input gate)
    this.cellTrace = new Float64Array(this.cells * this.D); // ∂s/∂(row of the cell)
  }

  get weightCount() {
    return this.W.length + this.V.length;
  }

  draw(uniform, { reach, inputGateBias }) {
    for (const weights of [this.W, this.V]) for (let k = 0; k < weights.length; k++) weights[k] = uniform() * reach;
    inputGateBias.forEach((bias, k) => (this.W[k * this.D + this.D - 1] = bias));
  }

  start() {
    this.x.fill(0);
    this.x[this.D - 1] = 1;
    this.given.s.fill(0);
    this.gateTrace.fill(0);
    this.cellTrace.fill(0);
  }

  step(x, offset) {
    const { D, W, net, units, blocks, blockSize, cells, given, gates } = this;
    const xs = this.x;
    for (let k = 0; k < this.inputs; k++) xs[k] = x[offset + k];
    for (let u = 0, row = 0; u < units; u++, row += D) {
      let sum = 0;
      for (let k = 0; k < D; k++) sum += W[row + k] * xs[k];
      net[u] = sum;
    }
    for (let k = 0; k < 2 * blocks; k++) gates.a[k] = net[k];
    for (let j = 0; j < cells; j++) {
      const block = (j / blockSize) | 0;
      given.i[j] = net[block];
      given.o[j] = net[blocks + block];
      given.a[j] = net[2 * blocks + j];
    }
    this.cellModule.step(cells, given, this.new);
    this.gateModule.step(2 * blocks, gates, this.gatesNew);
  }

  // The partials of the cells at this step.
  derive() {
    this.cellModule.partials(this.cells, this.given, this.d);
  }

  // ∂s(t) = ∂s/∂s ∂s(t−1) + ∂s/∂net x̃: errors do not go back through net inputs.
  carry() {
    const { D, cells, d, gateTrace, cellTrace, x } = this;
    for (let j = 0, at = 0; j < cells; j++) {
      const kept = d.d_s_d_s[j], byGate = d.d_s_d_i[j], byCell = d.d_s_d_a[j];
      for (let k = 0; k < D; k++, at++) {
        gateTrace[at] = kept * gateTrace[at] + byGate * x[k];
        cellTrace[at] = kept * cellTrace[at] + byCell * x[k];
      }
    }
  }

  // The outputs from the new activations.
  read() {
    const { cells, outputs, V, out } = this;
    for (let k = 0, row = 0; k < outputs; k++, row += cells + 1) {
      let sum = V[row + cells];
      for (let j = 0; j < cells; j++) sum += V[row + j] * this.new.y_new[j];
      out.a[k] = sum;
    }
    this.outModule.step(outputs, out, this.outNew);
    return this.outNew.y_new;
  }

  // Gradients of ½ Σ (y − target)² at this step, from its partials and the traces of the step before.
  gradients(target) {
    const { D, cells, outputs, blocks, blockSize, V, d, x, dW, dV, gateTrace, cellTrace } = this;
    dW.fill(0);
    dV.fill(0);
    const error = new Float64Array(cells);
    this.outModule.partials(outputs, this.out, this.dOut);
    for (let k = 0, row = 0; k < outputs; k++, row += cells + 1) {
      const delta = (this.outNew.y_new[k] - target[k]) * this.dOut.d_y_d_a[k];
      for (let j = 0; j < cells; j++) {
        error[j] += delta * V[row + j];
        dV[row + j] = delta * this.new.y_new[j];
      }
      dV[row + cells] = delta;
    }
    for (let j = 0; j < cells; j++) {
      const block = (j / blockSize) | 0, e = error[j], at = j * D;
      const ig = block * D, og = (blocks + block) * D, cell = (2 * blocks + j) * D;
      const byState = e * d.d_y_d_s[j], byIn = e * d.d_y_d_i[j], byOut = e * d.d_y_d_o[j], byCell = e * d.d_y_d_a[j];
      for (let k = 0; k < D; k++) {
        dW[ig + k] += byState * gateTrace[at + k] + byIn * x[k];
        dW[og + k] += byOut * x[k];
        dW[cell + k] += byState * cellTrace[at + k] + byCell * x[k];
      }
    }
  }

  // What the step made is what the next step reads.
  advance() {
    const { inputs, blocks, cells, x } = this;
    for (let k = 0; k < 2 * blocks; k++) x[inputs + k] = this.gatesNew.y_new[k];
    for (let j = 0; j < cells; j++) x[inputs + 2 * blocks + j] = this.new.y_new[j];
    this.given.s.set(this.new.s_new);
  }

  // One sequence: its outputs at the end, and the gradients of the error there.
  sequence({ x, length, target }, learn = true) {
    this.start();
    for (let t = 0; t < length; t++) {
      if (t) this.advance();
      this.step(x, t * this.inputs);
      if (learn) this.derive();
      if (learn && t < length - 1) this.carry();
    }
    const y = this.read();
    if (learn) this.gradients(target);
    return y;
  }

  descend(rate) {
    const { W, dW, V, dV } = this;
    for (let k = 0; k < W.length; k++) W[k] -= rate * dW[k];
    for (let k = 0; k < V.length; k++) V[k] -= rate * dV[k];
  }

  // Gates, internal states and their increments along a sequence, row by row in time.
  watch({ x, length }) {
    const found = { gates: [], states: [], written: [] };
    this.start();
    for (let t = 0; t < length; t++) {
      if (t) this.advance();
      this.step(x, t * this.inputs);
      found.gates.push([...this.gatesNew.y_new]);
      found.states.push([...this.new.s_new]);
      found.written.push(Array.from(this.new.s_new, (s, j) => s - this.given.s[j]));
    }
    found.output = [...this.read()];
    return found;
  }
}
