! A counter, arrays and a structure, watched in Fortran.
module shelf
  type box
    integer :: id
    real(8) :: weight
  end type
  integer(8) :: total = 0
  integer(4) :: nums(6) = (/1, 2, 3, 4, 5, 6/)
  integer(4) :: grid(3, 4) = 0
  type(box) :: b
end module

subroutine ready()
end subroutine

subroutine add(n)
  use shelf
  integer(8) :: n
  total = total + n
  nums(3) = nums(3) + 1
  grid(2, 3) = grid(2, 3) + 1
  b%weight = b%weight + 2.5
end subroutine

program main
  use shelf
  b%weight = 0
  call ready()
  call add(5_8)
  call add(900_8)
  if (total == 905) call exit(3)
end program
