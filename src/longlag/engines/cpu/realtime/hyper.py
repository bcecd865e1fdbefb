"""Numbers of a group of parameters in an optimiser, as the update kernel reads them; loads no compiler.

The names in lower case are columns of a group's row of float64.
"""

SGD, ADAM, RMSPROP = range(3)
MOMENTS = {
    SGD: ("momentum_buffer", None, None),
    ADAM: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    RMSPROP: ("square_avg", "grad_avg", "momentum_buffer"),
}

(kind, steps, lr, decay, maximize, momentum, dampening, nesterov) = range(8)
(beta1, beta2, eps, amsgrad, decoupled, alpha, centered) = range(8, 15)
COUNT = 15
