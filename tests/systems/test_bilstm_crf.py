"""BILSTM-CRF: a bidirectional LSTM whose read-out feeds a chain, against enumeration of all label paths.

K labels; B[t] = V [h_f(t); h_b(t)] + c_out; transitions A[to, from], start a_s and end a_e.
"""

import itertools

import pytest
import torch
from helpers import randn, same

import longlag as ll

K, SIZE = 3, 4
REFERENCE = {"dtype": torch.float64, "engine": "reference"}


def model():
    lstm = ll.LSTM(2, SIZE, bidirectional=True, **REFERENCE)
    readout, crf = torch.nn.Linear(2 * SIZE, K).double(), ll.CRF(K, batch_first=False, **REFERENCE)
    with torch.no_grad():
        for p in crf.parameters():
            p.normal_()
    return lstm, readout, crf


def emissions(lstm, readout, x, lengths=None):
    return readout(lstm(x, lengths=lengths)[0])  # [BILSTM-CRF 3]


def scores(B, crf):
    """All label paths of B (L, K) and their scores, term by term."""
    A, a_s, a_e = crf.transitions.t(), crf.start_transitions, crf.end_transitions
    paths = list(itertools.product(range(K), repeat=len(B)))
    found = []
    for y in paths:
        links = sum(A[b, a] for a, b in itertools.pairwise(y))
        found.append(a_s[y[0]] + links + sum(B[t, k] for t, k in enumerate(y)) + a_e[y[-1]])
    return paths, torch.stack(found)


def negative_log_likelihood(B, crf, y):
    paths, s = scores(B, crf)
    return torch.logsumexp(s, 0) - s[paths.index(tuple(y))]


def marginals(B, crf):
    paths, s = scores(B, crf)
    one_hot = torch.eye(K).double()[torch.tensor(paths)]  # (paths, L, K)
    return torch.einsum("p,plk->lk", torch.softmax(s, 0), one_hot)


def gradients(outputs, weights, d_outputs=None):
    """0 where nothing depends on a weight (transitions, at L = 1)."""
    return torch.autograd.grad(outputs, list(weights), d_outputs, retain_graph=True, materialize_grads=True)


@pytest.mark.parametrize("L", [1, 2, 5])
def test_loss_and_gradient_are_the_composition(L):
    lstm, readout, crf = model()
    weights = [*lstm.parameters(), *readout.parameters(), *crf.parameters()]
    x, y = randn(L, 1, 2), torch.randint(K, (L, 1))
    B = emissions(lstm, readout, x)
    loss, wanted = -crf(B, y), negative_log_likelihood(B[:, 0], crf, y[:, 0].tolist())
    same(loss, wanted, "loss", 1e-10)
    same(gradients(loss, weights), gradients(wanted, weights), "", 1e-10)
    # dB = P(y_t = k) − 1[y_t = k]; dh = Vᵀ dB; then back through both directions
    dB = marginals(B[:, 0], crf).detach() - torch.eye(K).double()[y[:, 0]]
    dh = (dB @ readout.weight.detach())[:, None]
    same(gradients(loss, lstm.parameters()), gradients(lstm(x)[0], lstm.parameters(), dh), "", 1e-10)


def test_a_padded_batch_is_each_sequence_alone():
    lstm, readout, crf = model()
    x, lengths = randn(5, 3, 2), torch.tensor([5, 1, 3])
    y, mask = torch.randint(K, (5, 3)), torch.arange(5)[:, None] < lengths
    B = emissions(lstm, readout, x, lengths)
    likelihood, paths = crf(B, y, mask, reduction="none"), crf.decode(B, mask)
    for b, L in enumerate(lengths.tolist()):
        alone = emissions(lstm, readout, x[:L, b])
        same(-likelihood[b], negative_log_likelihood(alone, crf, y[:L, b].tolist()), "", 1e-10)
        every, s = scores(alone, crf)
        assert tuple(paths[b]) == every[int(s.argmax())]


def test_transitions_decide_what_emissions_cannot():
    """Labels alternate, emissions tell the first one only: a softmax per step is lost, the chain is not."""
    crf, B = ll.CRF(2, batch_first=False, **REFERENCE), torch.zeros(6, 1, 2).double()
    B[0, 0, 0] = 1.0
    with torch.no_grad():
        for p in crf.parameters():
            p.zero_()
        crf.transitions.copy_(torch.tensor([[-5.0, 5.0], [5.0, -5.0]]))
    assert crf.decode(B) == [[0, 1, 0, 1, 0, 1]]
    assert B[:, 0].argmax(-1).tolist() == [0] * 6
