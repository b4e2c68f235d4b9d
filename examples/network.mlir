func.func @network(%x: tensor<5x37xf32>, %w1: tensor<37x53xf32>, %b1: tensor<53xf32>, %w2: tensor<53x11xf32>) -> tensor<5x11xf32> {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %e1 = tensor.empty() : tensor<5x53xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<5x53xf32>) -> tensor<5x53xf32>
  %m1 = linalg.matmul ins(%x, %w1 : tensor<5x37xf32>, tensor<37x53xf32>) outs(%f1 : tensor<5x53xf32>) -> tensor<5x53xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>], iterator_types = ["parallel","parallel"]}
    ins(%m1, %b1 : tensor<5x53xf32>, tensor<53xf32>) outs(%e1 : tensor<5x53xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %s = arith.addf %a, %b : f32
      %r = arith.maximumf %s, %zero : f32
      linalg.yield %r : f32
  } -> tensor<5x53xf32>
  %e2 = tensor.empty() : tensor<5x11xf32>
  %f2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<5x11xf32>) -> tensor<5x11xf32>
  %m2 = linalg.matmul ins(%h, %w2 : tensor<5x53xf32>, tensor<53x11xf32>) outs(%f2 : tensor<5x11xf32>) -> tensor<5x11xf32>
  %sm = linalg.softmax dimension(1) ins(%m2 : tensor<5x11xf32>) outs(%e2 : tensor<5x11xf32>) -> tensor<5x11xf32>
  return %sm : tensor<5x11xf32>
}
