module @counter {
  util.global private mutable @total = dense<0.0> : tensor<4xf32>
  func.func @add(%x : tensor<4xf32>) -> tensor<4xf32> {
    %t = util.global.load @total : tensor<4xf32>
    %s = arith.addf %t, %x : tensor<4xf32>
    util.global.store %s, @total : tensor<4xf32>
    return %s : tensor<4xf32>
  }
}
