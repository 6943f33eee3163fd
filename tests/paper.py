"""The paper in NumPy, float64, with explicit loops: an independent voice that imports nothing of lem."""

import numpy as np


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lem(weights, inputs, y, z, dt, clip=None, single_scale=False, mask=None):
    """Equation (3) over a sequence of inputs (time, m); returns all y and all z, (time, d).

    `weights` has the paper's names W1 W2 Wz Wy, V1 V2 Vz Vy, b1 b2 bz by.
    """
    w = weights
    mask = np.ones_like(y) if mask is None else mask
    all_y, all_z = [], []
    for u in inputs:
        if single_scale:
            gate_z = gate_y = dt
        else:
            gate_z = dt * sigmoid(w["W1"] @ (mask * y) + w["V1"] @ u + w["b1"])
            gate_y = dt * sigmoid(w["W2"] @ (mask * y) + w["V2"] @ u + w["b2"])
            if clip is not None:
                gate_z, gate_y = np.clip(gate_z, *clip), np.clip(gate_y, *clip)
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
