"""The paper in NumPy, float64, with explicit loops: an independent voice that imports nothing of lem."""

import numpy as np


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lem(weights, inputs, y, z, dt, clip=None, single_scale=False, mask=None, elapsed=None, restarts=(), start=None):
    """Equation (3) over a sequence of inputs (time, m); returns all y and all z, (time, d).

    `weights` has the paper's names W1 W2 Wz Wy, V1 V2 Vz Vy, b1 b2 bz by. A step that takes `elapsed[t]` times the
    usual time closes all but (1 - gate)^elapsed[t] of the distance to its target. `restarts` are the steps before
    which the state returns to `start`.
    """
    w = weights
    mask = np.ones_like(y) if mask is None else mask
    all_y, all_z = [], []
    for t, u in enumerate(inputs):
        if t in restarts:
            y, z = start
        if single_scale:
            gate_z = gate_y = dt
        else:
            gate_z = dt * sigmoid(w["W1"] @ (mask * y) + w["V1"] @ u + w["b1"])
            gate_y = dt * sigmoid(w["W2"] @ (mask * y) + w["V2"] @ u + w["b2"])
            if clip is not None:
                gate_z, gate_y = np.clip(gate_z, *clip), np.clip(gate_y, *clip)
        if elapsed is not None:
            gate_z, gate_y = 1 - (1 - gate_z) ** elapsed[t], 1 - (1 - gate_y) ** elapsed[t]
        z = (1 - gate_z) * z + gate_z * np.tanh(w["Wz"] @ (mask * y) + w["Vz"] @ u + w["bz"])
        y = (1 - gate_y) * y + gate_y * np.tanh(w["Wy"] @ z + w["Vy"] @ u + w["by"])
        all_y.append(y)
        all_z.append(z)
    return np.array(all_y), np.array(all_z)


def lem_gradient(weights, inputs, y, z, dt, grad_y):
    """The adjoint of equation (3), step by step: gradients of sum(grad_y * all_y) by name, and of inputs, y_0, z_0."""
    w = weights
    trace = []
    for u in inputs:
        a = sigmoid(w["W1"] @ y + w["V1"] @ u + w["b1"])
        b = sigmoid(w["W2"] @ y + w["V2"] @ u + w["b2"])
        c = np.tanh(w["Wz"] @ y + w["Vz"] @ u + w["bz"])
        z_new = (1 - dt * a) * z + dt * a * c
        d = np.tanh(w["Wy"] @ z_new + w["Vy"] @ u + w["by"])
        trace.append((u, y, z, z_new, a, b, c, d))
        y, z = (1 - dt * b) * y + dt * b * d, z_new
    grads = {name: np.zeros_like(value) for name, value in w.items()}
    grad_u = np.zeros_like(inputs)
    gy, gz = np.zeros_like(y), np.zeros_like(z)
    for n in reversed(range(len(trace))):
        u, y, z, z_new, a, b, c, d = trace[n]
        gy = gy + grad_y[n]
        g2 = gy * (d - y) * dt * b * (1 - b)
        g_y = gy * dt * b * (1 - d * d)
        g = gz + w["Wy"].T @ g_y
        g1 = g * (c - z) * dt * a * (1 - a)
        g_z = g * dt * a * (1 - c * c)
        for name, grad, state in (("1", g1, y), ("2", g2, y), ("z", g_z, y), ("y", g_y, z_new)):
            grads["W" + name] += np.outer(grad, state)
            grads["V" + name] += np.outer(grad, u)
            grads["b" + name] += grad
            grad_u[n] += w["V" + name].T @ grad
        gz = g * (1 - dt * a)
        gy = gy * (1 - dt * b) + w["W1"].T @ g1 + w["W2"].T @ g2 + w["Wz"].T @ g_z
    return grads, grad_u, gy, gz


def authors_lem(state_dict, inputs, dt):
    """The authors' module from a zero start: their names, row orders and doubled biases; returns all y."""
    d = state_dict["transform_z.weight"].shape[0]
    y, z, outputs = np.zeros(d), np.zeros(d), []
    for u in inputs:
        from_input = state_dict["inp2hid.weight"] @ u + state_dict["inp2hid.bias"]
        from_hidden = state_dict["hid2hid.weight"] @ y + state_dict["hid2hid.bias"]
        i_dt1, i_dt2, i_z, i_y = (from_input[k * d : (k + 1) * d] for k in range(4))
        h_dt1, h_dt2, h_y = (from_hidden[k * d : (k + 1) * d] for k in range(3))
        step_y, step_z = dt * sigmoid(i_dt1 + h_dt1), dt * sigmoid(i_dt2 + h_dt2)
        z = (1 - step_z) * z + step_z * np.tanh(i_y + h_y)
        y = (1 - step_y) * y + step_y * np.tanh(
            state_dict["transform_z.weight"] @ z + state_dict["transform_z.bias"] + i_z
        )
        outputs.append(y)
    return np.array(outputs)


def lstm(weights, inputs, h, c):
    """The LSTM of the paper's appendix D; weights by gate: Wf Wi Wo Wg, Vf ..., bf ...; returns all h."""
    w, all_h = weights, []
    for u in inputs:
        f, i, o = (sigmoid(w["W" + k] @ h + w["V" + k] @ u + w["b" + k]) for k in "fio")
        g = np.tanh(w["Wg"] @ h + w["Vg"] @ u + w["bg"])
        c = f * c + i * g
        h = o * np.tanh(c)
        all_h.append(h)
    return np.array(all_h)


# --- the other models: one step each, `step(weights, u, *state, options) -> state` ---


def run(step, weights, inputs, state, **options):
    """Run a step over inputs (time, m); returns the tuple of all its states, each (time, ...)."""
    seen = []
    for u in inputs:
        state = step(weights, u, *state, **options)
        seen.append(state)
    return tuple(np.array(field) for field in zip(*seen))


def affine(w, gate, h, u):
    return w["W" + gate] @ h + w["V" + gate] @ u + w["b" + gate]


def lstm_step(w, u, h, c, forget_scale=1.0, input_scale=1.0):
    f, i, o = (sigmoid(affine(w, gate, h, u)) for gate in "fio")
    c = forget_scale * f * c + input_scale * i * np.tanh(affine(w, "g", h, u))
    return o * np.tanh(c), c


def gru_step(w, u, h):
    r, s = sigmoid(affine(w, "r", h, u)), sigmoid(affine(w, "s", h, u))
    n = np.tanh(w["Vn"] @ u + w["bn"] + r * (w["Wn"] @ h + w["bhn"]))
    return ((1 - s) * n + s * h,)


def rnn_step(w, u, h):
    return (np.tanh(w["W"] @ h + w["V"] @ u + w["b"]),)


def antisymmetric_step(w, u, h, epsilon, gamma, gated):
    k = w["W"] - w["W"].T - gamma * np.eye(len(h))
    gate = sigmoid(k @ h + w["Vg"] @ u + w["bg"]) if gated else 1.0
    return (h + epsilon * gate * np.tanh(k @ h + w["V"] @ u + w["b"]),)


def lipschitz_step(w, u, h, beta, gamma, epsilon, midpoint):
    def constrained(m):
        return beta * (m - m.T) + (1 - beta) * (m + m.T) - gamma * np.eye(len(m))

    def slope(h):
        return constrained(w["MA"]) @ h + np.tanh(constrained(w["MW"]) @ h + w["V"] @ u + w["b"])

    return (h + epsilon * slope(h + 0.5 * epsilon * slope(h) if midpoint else h),)


def expm(a):
    """The matrix exponential by its series, after halving the matrix until it is small, and squaring back."""
    halvings = max(0, int(np.ceil(np.log2(np.abs(a).sum() + 1e-300))) + 1)
    term = result = np.eye(len(a))
    for k in range(1, 25):
        term = term @ (a / 2**halvings) / k
        result = result + term
    for _ in range(halvings):
        result = result @ result
    return result


def modrelu(x, b):
    return np.array([np.sign(xi) * max(abs(xi) + bi, 0.0) for xi, bi in zip(x, b)])


def exprnn_step(w, u, h):
    return (modrelu(w["B"] @ expm(w["A"] - w["A"].T) @ h + w["V"] @ u, w["b"]),)


def nnrnn_matrix(w):
    d = 2 * len(w["gamma"])
    schur = np.zeros((d, d))
    for i, (g, t) in enumerate(zip(w["gamma"], w["theta"])):
        block = slice(2 * i, 2 * i + 2)
        schur[block, block] = g * np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
    entries = iter(w["T"])
    for row in range(d):
        for column in range(2 * (row // 2) + 2, d):
            schur[row, column] = next(entries)
    p = expm(w["A"] - w["A"].T)
    return p @ schur @ p.T


def nnrnn_step(w, u, h):
    return (modrelu(nnrnn_matrix(w) @ h + w["V"] @ u, w["b"]),)


def cornn_step(w, u, y, z, dt, gamma, epsilon):
    z = z + dt * (np.tanh(w["Wy"] @ y + w["Wz"] @ z + w["V"] @ u + w["b"]) - gamma * y - epsilon * z)
    return y + dt * z, z


def unicornn_step(w, u, y, z, dt, alpha):
    s = dt * sigmoid(w["c"])
    z = z - s * (np.tanh(w["w"] * y + w["V"] @ u + w["b"]) + alpha * y)
    return y + s * z, z


def indrnn_step(w, u, h):
    return (np.maximum(w["w"] * h + w["V"] @ u + w["b"], 0.0),)


def fastrnn_step(w, u, h):
    return (sigmoid(w["beta"]) * h + sigmoid(w["alpha"]) * np.tanh(w["V"] @ u + w["W"] @ h + w["b"]),)


def fastgrnn_step(w, u, h):
    p = w["V"] @ u + w["W"] @ h
    g = sigmoid(p + w["bg"])
    return ((sigmoid(w["zeta"]) * (1 - g) + sigmoid(w["nu"])) * np.tanh(p + w["bh"]) + g * h,)


def tarnn_step(w, u, h, previous, n, gate_outside):
    """Here the state carries the previous input itself (None before the first step) and the number of the step."""
    previous = u if previous is None else previous
    gate = sigmoid(w["Ug"] @ h + w["Wg"] @ u + w["bg"])
    a = w["U2"] @ h + w["W1"] @ u + w["W2"] @ previous + w["b1"]
    s = h
    for alpha in w["alpha"][:, min(n, w["alpha"].shape[1] - 1)]:
        bracket = np.maximum(w["U1"] @ s + a, 0.0) - s - h + w["B1"] @ u + w["B2"] @ h
        s = (1 - alpha) * s + alpha * bracket if gate_outside else s + alpha * gate * bracket
    return ((1 - gate) * h + gate * s if gate_outside else s), u, n + 1


def skiplstm_step(w, u, h, c, increment, pending, updates, gate=None):
    """`gate`, a function of `pending`, stands for rounding."""
    pending = pending + min(increment, 1.0 - pending)
    g = np.round(pending) if gate is None else gate(pending)
    f = sigmoid(affine(w, "f", h, u) + 1.0)
    i, o = sigmoid(affine(w, "i", h, u)), sigmoid(affine(w, "o", h, u))
    c_new = f * c + i * np.tanh(affine(w, "g", h, u))
    h_new = o * np.tanh(c_new)
    increment = g * sigmoid(w["wp"] @ c_new + w["bp"]) + (1 - g) * increment
    return g * h_new + (1 - g) * h, g * c_new + (1 - g) * c, increment, (1 - g) * pending, updates + g


def logsignature(increments, depth):
    """The coefficients of the Lyndon words, by the sums that define the iterated integrals of a broken line."""
    channels = increments.shape[1]
    one = np.zeros(channels)
    two = np.zeros((channels,) * 2)
    three = np.zeros((channels,) * 3)
    for p, a in enumerate(increments):
        one += a
        two += np.einsum("i,j->ij", a, a) / 2
        three += np.einsum("i,j,k->ijk", a, a, a) / 6
        for q, b in enumerate(increments[p + 1 :], start=p + 1):
            two += np.einsum("i,j->ij", a, b)
            three += np.einsum("i,j,k->ijk", a, a, b) / 2 + np.einsum("i,j,k->ijk", a, b, b) / 2
            for c in increments[q + 1 :]:
                three += np.einsum("i,j,k->ijk", a, b, c)
    log_two = two - np.einsum("i,j->ij", one, one) / 2
    log_three = (
        three
        - (np.einsum("i,jk->ijk", one, two) + np.einsum("ij,k->ijk", two, one)) / 2
        + np.einsum("i,j,k->ijk", one, one, one) / 3
    )
    found = list(one)
    letters = range(channels)
    if depth > 1:
        found += [log_two[i, j] for i in letters for j in letters if i < j]
    if depth > 2:
        found += [
            log_three[i, j, k]
            for i in letters
            for j in letters
            for k in letters
            if (i, j, k) < (j, k, i) and (i, j, k) < (k, i, j)
        ]
    return np.array(found)


def nrde(weights, inputs, window, depth, time_step, midpoint=False):
    """The whole sequence (time, m): h at every step, held between the ends of windows."""
    path = np.column_stack([time_step * np.arange(len(inputs)), inputs])
    layers = weights["F"]
    h = weights["L"] @ path[0] + weights["b"]
    outputs = [h]

    def slope(h, driver):
        for k, (matrix, bias) in enumerate(layers):
            h = matrix @ h + bias
            if k < len(layers) - 1:
                h = np.tanh(h) if k == len(layers) - 2 else np.maximum(h, 0.0)
        return h.reshape(len(weights["b"]), len(driver)) @ driver

    for n in range(1, len(path)):
        if n % window == 0:
            driver = logsignature(np.diff(path[n - window : n + 1], axis=0), depth)
            k1 = slope(h, driver)
            k2 = slope(h + k1 / 2, driver)
            k3 = slope(h + k2 / 2, driver)
            k4 = slope(h + k3, driver)
            h = h + k2 if midpoint else h + (k1 + 2 * k2 + 2 * k3 + k4) / 6
        outputs.append(h)
    return np.array(outputs)
