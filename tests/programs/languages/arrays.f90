! Arrays that are found through what describes them: allocatable, of a structure, pointers with strides, dummy arguments.
module shapes
  type item
    integer :: id
    real, allocatable :: weights(:)
  end type
  type(item), allocatable :: items(:)
  integer, target :: grid(4,3) = 0
  integer, pointer :: row(:), back(:), every_other(:,:), nowhere(:)
  integer, allocatable :: cube(:,:,:)
contains
  subroutine fill(x, n)
    integer, intent(inout) :: x(:)
    integer, intent(in) :: n
    x(n) = 99
  end subroutine
end module

subroutine ready()
end subroutine

program arrays
  use shapes
  allocate(items(2), cube(0:1,2:3,5))
  allocate(items(2)%weights(3))
  cube = 0
  items(2)%weights = 0
  row => grid(2,:)
  back => grid(4:1:-1, 2)
  every_other => grid(1:4:2, :)
  nullify(nowhere)
  call ready()
  items(2)%weights(3) = 1.5
  row(3) = 7
  grid(1,1) = 1
  back(1) = 11
  every_other(2,3) = 12
  cube(1,3,4) = 13
  deallocate(items(2)%weights)
  allocate(items(2)%weights(3))
  items(2)%weights(3) = 2.5
  call fill(grid(1,:), 2)
end program
